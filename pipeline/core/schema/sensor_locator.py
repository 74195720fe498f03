"""Where a sensor's rows may lie, in a table whose row keys are made of metadata."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from pipeline.core.rows import prefix_range
from pipeline.core.schema.foreign import ForeignRow
from pipeline.core.schema.queries import ReadRows, skip_scan
from pipeline.core.schema.scans import KeyBindings
from pipeline.core.schema.table_schema import TableSchema
from pipeline.core.schema.template import RawKey
from pipeline.core.schema.tokens import MetadataToken, MetricToken


class SensorLocator:
    """Finds the metadata by which a sensor's rows are found, as it is in the table: a sensor may have moved.

    What was looked up once is not looked up again; rows that came since are not seen. A row whose key the schema does
    not write is nobody's home, and is passed.

    Args:
        schema: of the table.
        read: what rows are had by.
    """

    def __init__(self, schema: TableSchema, read: ReadRows) -> None:
        self._schema = schema
        self._read = read
        self._known: dict[bytes, list[str]] = {}

    def of(self, sensor_id: str) -> list[dict[str, str]]:
        """What row keys of that sensor may have of metadata before the time; where keys have none there, once nothing.

        Costs one seek for each text that a token has behind what is known before it.
        """
        found: dict[tuple[tuple[str, str], ...], None] = {}
        for known in self._complete(KeyBindings(sensor_id)):
            found[tuple(sorted(known.metadata.items()))] = None
        return [dict(metadata) for metadata in found]

    def _complete(self, known: KeyBindings) -> Iterator[KeyBindings]:
        if not self._schema.keys.missing(known):
            yield known
            return
        token = self._schema.keys.unknown(known)
        prefix = self._schema.keys.prefix(known)
        match token:
            case MetadataToken(name=name):
                for text in self._texts(prefix, lambda key: key.metadata[name]):
                    yield from self._complete(replace(known, metadata={**known.metadata, name: text}))
            case MetricToken():
                for text in self._texts(prefix, lambda key: key.metric):
                    yield from self._complete(replace(known, metric=text))
            case _:
                raise TypeError(token)  # a sensor that is known tells all others

    def _texts(self, prefix: bytes, text_of: Callable[[RawKey], str]) -> list[str]:
        """What stands behind the prefix in the keys of the table, each once."""
        texts = self._known.get(prefix)
        if texts is None:
            texts = self._known[prefix] = list(self._seek(prefix, text_of))
        return texts

    def _seek(self, prefix: bytes, text_of: Callable[[RawKey], str]) -> Iterator[str]:
        def prefix_of(_: bytes, key: RawKey) -> bytes:
            return prefix + f"{text_of(key)}#".encode()

        found = skip_scan(self._read, prefix_range(prefix), self._schema.key.parse_key, prefix_of, _pass)
        return (text_of(key) for _, key in found)


def _pass(problem: ForeignRow) -> None:
    """Goes on behind the row."""
