"""``dead-letters list`` and ``show`` as text: ids are whole on a terminal of any width."""

import pytest
from rich.console import Console

from pipeline.cli import tables
from pipeline.core.dead_letters import DeadLetter, LetterGroups
from pipeline.core.events.event import MAX_SENSOR_ID
from pipeline.core.events.message import Message, sensor_event
from pipeline.dead_letters.views import print_groups, print_letter

SENSOR, EVENT_ID, MESSAGE_ID = "s" * MAX_SENSOR_ID, "e" * 300, "1" * 20


@pytest.mark.parametrize("width", [40, 80, 500])
def test_ids(capsys, monkeypatch, width):
    """The longest ids are in one piece, in the table and in the blocks."""
    terminal = Console(width=width, force_terminal=True, color_system=None, highlight=False, emoji=False)
    monkeypatch.setattr(tables, "out", terminal)
    event = sensor_event(SENSOR, 0, {"t": 1.0}, {}, EVENT_ID)
    message = Message(b"", {"sensor": SENSOR}, MESSAGE_ID)
    letter = DeadLetter(message, message, "TOO_OLD", "too old", "Decode", 1_771_322_400_000_000, 0, (event,))
    groups = LetterGroups()
    groups.add(letter)
    print_groups(groups)
    assert SENSOR in capsys.readouterr().out
    print_letter(letter)
    printed = capsys.readouterr().out
    assert SENSOR in printed
    assert EVENT_ID in printed
    assert MESSAGE_ID in printed
    assert "".join(printed.split()).count(SENSOR) == 2  # in the attribute, which may be folded, too
