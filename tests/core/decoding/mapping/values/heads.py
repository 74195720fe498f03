"""The heads of mappings that tests complete."""

from datetime import UTC, datetime

import pytest

from pipeline.core.events.reasons import BadData

T = 1_771_324_200  # 2026-02-17T10:30:00Z
T_US = T * 1_000_000
HEAD = 'message = "json"\nsensor = "s"\ntime = "$publish_time"\n'
KINDS = 'message = "fleet.Kinds"\nsensor = { constant = "s" }\ntime = "$publish_time"\n'
NOW = {"publish_time": datetime.fromtimestamp(T, UTC)}


def refused(call, *args):
    """Returns the reason for which a call refuses its message."""
    with pytest.raises(BadData) as error:
        call(*args)
    return error.value.reason
