import uuid

import pytest

from pipeline.cloud.names import TableName


@pytest.fixture
def name(bigtable: str) -> TableName:
    """A table that is not there yet."""
    return TableName("test-project", "test-instance", f"t-{uuid.uuid4().hex}")
