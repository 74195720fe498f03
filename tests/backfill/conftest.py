"""Backfills whose pipelines are built faster."""

from tests.support.untyped import unchecked_types as unchecked_types
