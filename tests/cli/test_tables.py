"""Ids and times are whole in every table: other columns give way, or each row becomes a block."""

import pytest
from rich.console import Console

from pipeline.cli import tables
from pipeline.cli.tables import RowBlock, number, print_block, print_table, prose, word

TIME = "2026-02-17T10:00:00.000001Z"
SENSORS = ["freezer-00000016", "north wing, freezer 12", "Kühlraum-冷凍庫-1", "x" * 256]
DETAIL = "the sensor's time is a week ahead of the clock"


@pytest.fixture(params=[40, 80, 200, None])
def out(request, monkeypatch) -> Console:
    """A terminal of a width, or a pipe."""
    is_terminal = request.param is not None
    console = Console(width=request.param, force_terminal=is_terminal, color_system=None, highlight=False, emoji=False)
    monkeypatch.setattr(tables, "out", console)
    return console


@pytest.mark.parametrize("sensor_id", SENSORS)
@pytest.mark.parametrize("shape", [{}, {"is_bare": True, "indent": 4}])
def test_ids_and_times(out, capsys, sensor_id, shape):
    """Each is in one piece at any width, and of a text that is folded nothing is lost."""
    columns = word("sensor id"), word("event time"), number("value"), prose("detail"), prose("severity")
    print_table(columns, [(sensor_id, TIME, "23.5", DETAIL, "[page]")] * 2, **shape)
    printed = capsys.readouterr().out
    assert printed.count(sensor_id) == printed.count(TIME) == printed.count("23.5") == 2
    assert "…" not in printed
    assert "".join(printed.split()).count("[page]") == 2
    if out.is_terminal and out.width == 80 and len(sensor_id) < 60:  # the terminal itself wraps longer ids
        assert max(map(len, printed.splitlines())) <= out.width
    if not out.is_terminal:
        assert sum(DETAIL in line and TIME in line for line in printed.splitlines()) == 2


def test_prose_gives_way(out, capsys):
    """A table that fits once its prose is folded stays a table."""
    print_table([word("event time"), prose("detail")], [(TIME, DETAIL)] * 2)
    lines = capsys.readouterr().out.splitlines()
    is_table = lines[1].split() == ["event", "time", "detail"]
    assert is_table == (out.width > 40)
    assert max(map(len, lines)) <= out.width or not out.is_terminal


@pytest.mark.usefixtures("out")
def test_blocks(capsys):
    """A caller's blocks tell all of a row, under long names too."""
    name = "m" * 128
    block = RowBlock("s, " + TIME, [(word("event id"), "e" * 300), (prose(name), DETAIL), (prose("metadata"), "")])
    print_table([word("event id")], [["e" * 300]], lambda: [block])
    print_block(*block)
    printed = capsys.readouterr().out
    assert printed.count("e" * 300) == 2
    assert printed.splitlines()[-4:-1][0] == "s, " + TIME
    assert name in printed
    assert DETAIL in " ".join(printed.split())
    assert "metadata" not in printed


@pytest.mark.parametrize("words", [TIME, "device=" + "d" * 33, "payload=" + "p" * 256])
def test_words_of_prose(out, capsys, words):
    """Prose is folded between words only: an id or a time within it can be copied too."""
    of_prose = f"{DETAIL}, first_time={words}, {DETAIL}"
    print_table([word("event time"), prose("metadata")], [(TIME, of_prose)])
    assert f"first_time={words}," in capsys.readouterr().out
    print_block(TIME, [(prose("metadata"), of_prose)])
    printed = capsys.readouterr().out
    assert f"first_time={words}," in printed
    assert of_prose.split() == printed.split()[2:]
    if out.is_terminal and out.width < 100:
        assert len(printed.splitlines()) > 3
