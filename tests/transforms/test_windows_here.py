import pytest

from pipeline.cloud.connection.names import TableName
from pipeline.cloud.tables import tables
from pipeline.core.schema.table_schema import TableSchema
from pipeline.transforms import aggregate
from pipeline.transforms.windows_here import WindowsHere
from tests.job.running import PROJECT
from tests.support.lasting import lasting
from tests.support.streams import HOUR, MINUTE, Script, event_at


class Recorded(WindowsHere):
    """Notes what is open, left to restore and left to recompute after each call."""

    def __init__(self):
        super().__init__(lambda: self.calls)
        self.watched, self.noted = True, []

    calls = 0

    def note(self):
        self.calls += 1
        self.noted.append((self.open, self.left_to_restore, self.left_to_recompute))

    def wait(self, *args, **kwargs):
        super().wait(*args, **kwargs)
        self.note()

    def fired(self, *args):
        super().fired(*args)
        self.note()


@pytest.fixture
def here(monkeypatch):
    recorded = Recorded()
    monkeypatch.setattr(aggregate, "HERE", recorded)
    return recorded


@pytest.fixture
def run(bigtable, request):
    """Returns a function that runs a script on a table that no other test uses."""
    name, schema = TableName(PROJECT, "instance", f"t{abs(hash(request.node.nodeid))}"), lasting(TableSchema.default())
    tables.create(name, schema)
    return lambda script, began: script.run(schemas={name.table: schema}, began=began)


def test_windows_are_left_until_their_group_fires(here, run):
    """Windows that the table may store are left until they are restored; later readings of theirs find them open."""
    events = [event_at(0, sensor_id=sensor_id) for sensor_id in ("a", "b", "a")]
    run(Script().arrive(*events).watermark(HOUR).arrive(events[0]).watermark(HOUR + MINUTE), 4 * HOUR)
    lefts, most_open = [left for _, left, _ in here.noted], max(opened for opened, *_ in here.noted)
    assert (max(lefts), most_open) == (2, 2)
    restored = lefts.index(0)
    assert here.seconds_since_read == here.calls - restored
    assert set(lefts[restored:]) == {0}
    assert here.noted[-1] == (0, 0, 0)


def test_windows_that_begin_later_are_not_left(here, run):
    """A window that the table can't store is open, and never left to restore: its firing reads nothing."""
    run(Script().arrive(event_at(0)).watermark(HOUR), -2 * HOUR)
    assert here.seconds_since_read == here.calls
    assert [left for _, left, _ in here.noted] == [0] * len(here.noted)
    assert max(opened for opened, *_ in here.noted) == 1


def test_closed_windows_are_left_until_they_are_computed_again(here, run):
    """Late events make a closed window wait until it is computed again."""
    run(Script().arrive(event_at(0)).watermark(2 * HOUR).arrive(event_at(1), event_at(2)), -2 * HOUR)
    assert [late for *_, late in here.noted].count(1) == 1
    assert here.noted[-1] == (0, 0, 0)


def test_nobody_counts_unless_asked(here, run):
    """A job that is not watched counts nothing."""
    here.watched = False
    run(Script().arrive(event_at(0)), 4 * HOUR)
    assert here.noted == []
