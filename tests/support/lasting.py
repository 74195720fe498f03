"""Schemas without garbage collection: the tests' readings are old, and Bigtable's emulator collects too."""

from dataclasses import replace

from pipeline.core.schema.gc_policies import Never
from pipeline.core.schema.table_schema import TableSchema


def lasting(schema: TableSchema) -> TableSchema:
    """Returns the same schema with policies that never collect anything."""
    return replace(schema, policies=dict.fromkeys(schema.families, Never()))
