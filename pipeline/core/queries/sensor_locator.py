"""Locates a sensor's rows in a table whose row keys contain metadata."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from pipeline.core.queries.foreign import ForeignRow
from pipeline.core.queries.seeks import ReadRows, skip_scan
from pipeline.core.rows.rows import prefix_range
from pipeline.core.schema.key_space import KeyBindings
from pipeline.core.schema.key_template import RawKey
from pipeline.core.schema.key_tokens import MetadataToken, MetricToken
from pipeline.core.schema.table_schema import TableSchema


class SensorLocator:
    """Looks up the metadata in a sensor's row keys. It may have several values: a sensor may have moved.

    Caches the results, and so may miss rows that are written later. Skips rows whose keys the schema does not write.

    Args:
        schema: the table's schema.
        read: reads rows.
    """

    def __init__(self, schema: TableSchema, read: ReadRows) -> None:
        self._schema = schema
        self._read = read
        self._cache: dict[bytes, list[str]] = {}

    def of(self, sensor_id: str) -> list[dict[str, str]]:
        """Returns each combination of metadata before the time in the sensor's row keys; ``[{}]`` if keys have none.

        Costs one seek for each value of each unknown token.
        """
        found: dict[tuple[tuple[str, str], ...], None] = {}
        for known in self._complete(KeyBindings(sensor_id)):
            found[tuple(sorted(known.metadata.items()))] = None
        return [dict(metadata) for metadata in found]

    def _complete(self, known: KeyBindings) -> Iterator[KeyBindings]:
        if not self._schema.keys.missing_metadata(known):
            yield known
            return
        token = self._schema.keys.first_unknown(known)
        prefix = self._schema.keys.prefix(known)
        match token:
            case MetadataToken(name=name):
                for text in self._texts(prefix, lambda key: key.metadata[name]):
                    yield from self._complete(replace(known, metadata={**known.metadata, name: text}))
            case MetricToken():
                for text in self._texts(prefix, lambda key: key.metric):
                    yield from self._complete(replace(known, metric=text))
            case _:
                raise TypeError(token)  # all other tokens follow from the sensor

    def _texts(self, prefix: bytes, text_of: Callable[[RawKey], str]) -> list[str]:
        """Returns each text that follows the prefix in the keys of the table."""
        texts = self._cache.get(prefix)
        if texts is None:
            texts = self._cache[prefix] = list(self._seek(prefix, text_of))
        return texts

    def _seek(self, prefix: bytes, text_of: Callable[[RawKey], str]) -> Iterator[str]:
        def prefix_of(_: bytes, key: RawKey) -> bytes:
            return prefix + f"{text_of(key)}#".encode()

        found = skip_scan(self._read, prefix_range(prefix), self._schema.key.parse_key, prefix_of, _leave_out)
        return (text_of(key) for _, key in found)


def _leave_out(problem: ForeignRow) -> None:
    """Skips the row."""
