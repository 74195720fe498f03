"""The retention of a table that is being read."""

from datetime import timedelta

from pipeline.cloud.connection.problems import ServerProblem
from pipeline.cloud.tables import tables
from pipeline.cloud.tables.retention_notes import KnownRetention
from pipeline.cloud.tables.tables import Difference
from pipeline.core.schema.gc_policies import MaxAge, Never
from pipeline.core.schema.table_schema import TableSchema
from tests.support.lasting import lasting
from tests.support.tables import created

SCHEMA = lasting(TableSchema.default())


def test_it_follows_the_table(bigtable):
    """A policy that somebody sets by hand counts a minute later."""
    name, clock = created(SCHEMA), [0.0]
    retention = KnownRetention(name, SCHEMA, lambda: clock[0])
    assert retention().ages["stats"] is None
    tables.apply(name, [Difference("stats", Never(), MaxAge(timedelta(days=1)))])
    clock[0] = 59
    assert retention().ages["stats"] is None
    clock[0] = 60
    assert retention().ages["stats"] == timedelta(days=1)


def test_without_permission(monkeypatch):
    """Nothing is certain of a table whose policies can't be read; its rows can still be."""

    def refuse(_):
        raise ServerProblem("permission denied")

    monkeypatch.setattr(tables, "describe", refuse)
    assert not KnownRetention(None, SCHEMA)().known
