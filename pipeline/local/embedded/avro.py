"""Avro's schemas, and which messages conform to them.

fastavro reads the definitions and binary messages. Its reader of JSON takes more than Avro's own, with which Google
checks messages: fields may be missing, and values may be of other types.
"""

import io
import json
from typing import Any

import fastavro
from google.pubsub_v1.types import Encoding

_TYPES = {"null": type(None), "boolean": bool, "bytes": str, "string": str}
_LIMITS = {"int": 1 << 31, "long": 1 << 63, "float": float("inf"), "double": float("inf")}


class AvroSchema:
    """A schema.

    Args:
        definition: the parsed JSON.

    Raises:
        ValueError: two fields of a record have one name; fastavro raises errors of its own.
    """

    def __init__(self, definition: Any) -> None:
        self._named: dict[str, Any] = {}
        self._parsed = fastavro.parse_schema(definition, self._named)
        for each in self._named.values():
            names = [field["name"] for field in each.get("fields", ())]
            if len(set(names)) < len(names):
                raise ValueError(f"two fields of {each['name']} have one name")

    def accepts(self, message: bytes, encoding: int) -> bool:
        """Returns whether a message begins with a value of the schema, in an encoding of Pub/Sub's."""
        try:
            if encoding == Encoding.BINARY:
                fastavro.schemaless_reader(io.BytesIO(message), self._parsed, None)
                return True
            value, _ = json.JSONDecoder().raw_decode(message.decode().lstrip())
            return self._fits(value, self._parsed)
        except (ValueError, EOFError, IndexError, RecursionError):
            return False

    def _fits(self, value: Any, schema: Any) -> bool:
        if isinstance(schema, list):
            return self._fits_union(value, schema)
        kind = schema["type"] if isinstance(schema, dict) else schema
        if kind in self._named:
            return self._fits(value, self._named[kind])
        if not isinstance(kind, str):
            return self._fits(value, kind)
        if kind in ("record", "error"):
            fields = {field["name"]: field["type"] for field in schema["fields"]}
            return isinstance(value, dict) and all(
                name in value and self._fits(value[name], of) for name, of in fields.items()
            )
        if kind == "map":
            return isinstance(value, dict) and all(self._fits(each, schema["values"]) for each in value.values())
        if kind == "array":
            return isinstance(value, list) and all(self._fits(each, schema["items"]) for each in value)
        if kind == "enum":
            return value in schema["symbols"]
        if kind == "fixed":
            return isinstance(value, str) and len(value) == schema["size"]
        if kind in _TYPES:
            return isinstance(value, _TYPES[kind])
        # Google takes 1.5 for an int.
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LIMITS[kind]

    def _fits_union(self, value: Any, branches: list[Any]) -> bool:
        """Returns whether a value names its branch, as {"string": "x"} does; null stands for itself."""
        if value is None:
            return "null" in branches
        names = {each if isinstance(each, str) else each.get("name", each["type"]): each for each in branches}
        if not isinstance(value, dict) or len(value) != 1:
            return False
        ((name, inner),) = value.items()
        return name in names and self._fits(inner, names[name])
