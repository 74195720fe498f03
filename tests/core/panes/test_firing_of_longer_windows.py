"""What follows from a table's tiers and a job's firings."""

import pytest

from pipeline.core.panes.firing import Aggregation, FiringRules
from pipeline.core.schema.toml import parse_schema

SECOND = 1_000_000
MINUTE = 60 * SECOND


@pytest.mark.parametrize(
    ("tiers", "early_s", "waiting", "noted", "every_s"),
    [
        (["1h", "1d", "1mo"], 300, [], ["1h"], 3600),
        (["1h", "1mo"], 300, ["1mo"], ["1h", "1mo"], 3600),
        (["1m", "1h", "1d"], 300, ["1h"], ["1m", "1h"], 900),
        (["1m", "1h", "1d"], 10, ["1h"], ["1m", "1h"], 120),
        (["1m", "1d"], 300, ["1d"], ["1m", "1d"], 3600),
        (["1m", "1d"], 0, ["1d"], ["1m", "1d"], 5),
        (["1m", "1h", "1d@Europe/Berlin"], 0, ["1h"], ["1m", "1h", "1d@Europe/Berlin"], 5),
        (["1h"], 300, [], ["1h"], 3600),
    ],
)
def test_longer_windows_that_wait(tiers, early_s, waiting, noted, every_s):
    """They have more than 48 windows of the shortest tier; a process on one machine notes them."""
    text = ", ".join(f'"{window}" = "f{index}"' for index, window in enumerate(tiers))
    schema = parse_schema(f"tiers = {{ {text} }}")
    rules = FiringRules(schema.tiers[0].window, early_s * SECOND, 0, 0)
    aggregation = Aggregation(schema.tiers, rules)
    waits = zip(schema.tiers, aggregation.waits, strict=True)
    assert [tier.window.text for tier, each in waits if each] == waiting
    assert [tier.window.text for tier in aggregation.noted] == noted
    assert aggregation.follow_every_us == every_s * SECOND
