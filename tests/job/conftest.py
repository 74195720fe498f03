import pytest

from tests.job.running import Resources


@pytest.fixture
def resources(pubsub, bigtable):
    """The test's own topics, subscriptions and table."""
    resources = Resources()
    yield resources
    resources.close()
