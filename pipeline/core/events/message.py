"""A Pub/Sub message, independent of the client library, and the names of its attributes."""

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

EVENT_TYPE = "tidetable.v1.SensorEvent"
BATCH_TYPE = "tidetable.v1.SensorEventBatch"

MESSAGE_TYPE = "message_type"
EVENT_TIME = "event_time"
EVENT_ID = "event_id"
# Pub/Sub sets these on topics with a schema. Clients cannot publish attributes that start with "goog".
ENCODING = "googclient_schemaencoding"
SCHEMA_REVISION = "googclient_schemarevisionid"


class Message(NamedTuple):
    """A message: its payload, its attributes, and what Pub/Sub adds."""

    data: bytes
    attributes: Mapping[str, str]
    message_id: str = ""
    publish_time: datetime | None = None
    ordering_key: str = ""

    @property
    def is_batch(self) -> bool:
        """Whether the payload is a ``SensorEventBatch``."""
        return self.attributes.get(MESSAGE_TYPE) == BATCH_TYPE
