import json
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.accumulation.accumulator import read_window, window_bytes
from pipeline.core.accumulation.reading_columns import event_key
from pipeline.core.rows.aggregate_rows import aggregate_row, encoded_aggregate_row, parse_aggregate_row
from pipeline.core.rows.aggregate_rows import parse_window_stats as parsed
from pipeline.core.rows.rows import Row, encoded
from pipeline.core.statistics.member import (
    Member,
    contradict,
    later,
    member_bytes,
    member_fields,
    member_text,
    noted,
    parse_member,
)
from pipeline.core.statistics.window_stats import BY_DEFAULT, WindowStats
from pipeline.core.windows import HOURLY

FIELDS = ("model", "site")
START_US = HOURLY.start_of(2**50)
TEXTS = st.dictionaries(st.sampled_from([*FIELDS, "other"]), st.text(max_size=9)).map(
    lambda metadata: member_text(FIELDS, metadata)
)
TIMES = st.integers(2**50, 2**50 + 3)
MEMBERS = st.builds(
    Member,
    TIMES | st.builds(event_key, TIMES, st.sampled_from("ab")),
    TEXTS,
    st.lists(TEXTS, max_size=3, unique=True).map(tuple),
)


def stats_with(member, value=1.0):
    stats = WindowStats()
    stats.add({"t": value})
    stats.member = member
    return stats


def test_a_text_tells_which_fields_it_tells():
    """A text has the fields of roll-ups in order, with null for one that the event lacks, and no others."""
    assert member_text(("model", "site"), {"site": "Süd", "x": "y"}) == '{"model":null,"site":"Süd"}'
    assert member_fields('{"model":null,"site":"Süd"}') == {"model": None, "site": "Süd"}


@given(st.lists(MEMBERS, min_size=1, max_size=4))
def test_the_newest_event_counts(members):
    """In any order, it is the newest event that counts, also if more than the time identifies events."""

    def order(member):
        return member.time_us >> 64 or member.time_us, member.time_us

    newest = max(map(order, members))[1]
    for some in permutations(members):
        found = None
        for member in some:
            found = later(found, member)
        assert found.time_us == newest
        parts = [member_fields(member.text) for member in some if member.time_us == newest]
        for field in FIELDS:
            values = [part[field] for part in parts if part[field] is not None]
            assert member_fields(found.text)[field] == (values[-1] if values else None)


def test_parts_of_an_event():
    """Parts of an event are merged as its raw row merges them; a field with two values is a contradiction."""
    north = Member(5, member_text(FIELDS, {"site": "north"}))
    south = Member(5, member_text(FIELDS, {"site": "south"}))
    model = Member(5, member_text(FIELDS, {"model": "m"}))
    assert later(north, model) == later(model, north) == Member(5, '{"model":"m","site":"north"}')
    assert later(north, south) == south
    assert later(south, north) == north
    assert contradict(north, south)
    assert not any(contradict(north, other) for other in (None, north, model, south._replace(time_us=6)))


@given(st.lists(MEMBERS, min_size=1, max_size=4))
def test_what_was_before(members):
    """Whatever the order, the other texts are kept of all events, also of those that were the newest for a while."""
    members = [each._replace(before=tuple(text for text in each.before if text != each.text)) for each in members]
    for some in permutations(members):
        found, shown = None, {text for member in some for text in (member.text, *member.before)}
        for member in some:
            found = later(found, member)
            shown.add(found.text)
        assert {found.text, *found.before} == shown | {found.text}
        assert found.text not in found.before
        assert noted(None, some)[0][:] == found[:]


def test_very_many_texts():
    """Of very many texts, a member has the last."""
    texts = [member_text(FIELDS, {"site": f"{number}{'x' * 1000}"}) for number in range(100)]
    member, _, _ = noted(None, [Member(number, text) for number, text in enumerate(texts)])
    assert member.text == texts[-1]
    assert member.before == tuple(texts[-1 - len(member.before) : -1])
    assert 10 < len(member.before) < 20


@given(MEMBERS)
def test_round_trips(member):
    """A member stays the same in bytes, in the state of a job and in an aggregate row."""
    assert parse_member(member_bytes(member))[:] == member[:]
    stats = stats_with(member)
    assert read_window(window_bytes(stats)).member[:] == member[:]
    row = aggregate_row(HOURLY, "s", START_US, stats, "f")
    assert json.loads(row.cells[-1].value) == [member.time_us, *map(json.loads, (member.text, *member.before))]
    assert encoded_aggregate_row(HOURLY, "s", START_US, stats, "f") == encoded(row)
    assert parsed(HOURLY, row)[1].member[:] == member[:]


def test_readers_do_not_see_it():
    """What readers get of a row with a member is what they get of one without."""
    plain, told = (
        parse_aggregate_row(HOURLY, aggregate_row(HOURLY, "s", START_US, stats_with(member), "f"), BY_DEFAULT)
        for member in (None, Member(5, "{}"))
    )
    assert plain == told


def test_without_roll_ups_nothing_changes():
    """The state and the row of a window without a member are those of releases before roll-ups."""
    stats = stats_with(None, 1.5)
    assert window_bytes(stats).hex() == (
        "1d" + "0100000000000000" + "02000000" + "0174" + "0100000000000000" + 4 * "000000000000f83f" + 8 * "00"
    )
    qualifiers = [cell.qualifier for cell in aggregate_row(HOURLY, "s", START_US, stats, "f").cells]
    assert qualifiers == [b"reading_count", b"count_t", b"sum_t", b"min_t", b"max_t", b"avg_t", b"stddev_t"]


def test_merging():
    """Merged statistics have the member of the later window; one without a member changes nothing."""
    earlier, newest = Member(5, '{"site":"a"}'), Member(6, '{"site":"b"}')
    for members in permutations([earlier, newest, None]):
        total = WindowStats()
        for member in members:
            total.merge(stats_with(member))
        assert total.member == newest


@pytest.mark.parametrize("value", [b"", b"[5]", b"[5,]", b"[x,{}]", b'[5,"a"]', b'[5,{"a":1}]', b"[5,{}] ", b"[ 5,{}]"])
def test_other_bytes(value):
    """Bytes that are not a member's are refused: the row is another program's."""
    row = aggregate_row(HOURLY, "s", START_US, stats_with(Member(5, "{}")), "f")
    cells = [cell._replace(value=value) if cell.qualifier == b"member" else cell for cell in row.cells]
    with pytest.raises(ValueError, match=r"^"):
        parse_aggregate_row(HOURLY, Row(row.key, cells))
