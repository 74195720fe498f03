import pytest

from tests.job.running import Resources


@pytest.fixture
def resources(pubsub, bigtable):
    """Topics, subscriptions and a table of the test's own."""
    resources = Resources()
    yield resources
    resources.close()
