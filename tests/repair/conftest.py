"""A table to repair."""

import pytest

from tests.repair.tables import aggregates, events, raw_rows, table_of, write
from tests.support.untyped import unchecked_types as unchecked_types


@pytest.fixture
def written(bigtable):
    """A table of hours and days in which every aggregate is right."""
    name, schema = table_of()
    write(name, [*raw_rows(schema, events()), *aggregates(schema, events())])
    return name, schema
