import pytest

from pipeline.cloud.connection.names import TableName
from tests.support.tables import unused_name


@pytest.fixture
def name(bigtable: str) -> TableName:
    """The name of a table that does not exist yet."""
    return unused_name()
