"""Tables whose rows stay: the tests' readings are of a time long past, which Bigtable's emulator collects too."""

from dataclasses import replace

from pipeline.core.schema.policies import Never
from pipeline.core.schema.table_schema import TableSchema


def lasting(schema: TableSchema) -> TableSchema:
    """The same schema, of which nothing is ever collected."""
    return replace(schema, policies=dict.fromkeys(schema.families, Never()))
