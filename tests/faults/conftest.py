import pytest

from pipeline.core.schema.table_schema import TableSchema
from tests.faults.feed import Feed
from tests.job.running import Resources
from tests.support.lasting import lasting


@pytest.fixture
def resources(pubsub, bigtable):
    """Topics, subscriptions and a table of the test's own, which collects nothing."""
    resources = Resources()
    resources.table = resources.table_of(lasting(TableSchema.for_new_table()))
    yield resources
    resources.close()


@pytest.fixture
def feed(resources):
    return Feed(resources)


@pytest.fixture
def log(tmp_path):
    return tmp_path / "job.log"
