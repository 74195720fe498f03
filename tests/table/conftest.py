import uuid

import pytest

from pipeline.cloud.connection.names import TableName


@pytest.fixture
def name(bigtable: str) -> TableName:
    """The name of a table that does not exist yet."""
    return TableName("test-project", "test-instance", f"t-{uuid.uuid4().hex}")
