"""Backfills whose pipelines are built faster."""

from tests.support.no_waiting import no_waiting as no_waiting
from tests.support.untyped import unchecked_types as unchecked_types
