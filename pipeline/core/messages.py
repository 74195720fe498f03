"""A Pub/Sub message as the core knows it, whichever client brought it."""

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

EVENT_TYPE = "tidetable.v1.SensorEvent"
BATCH_TYPE = "tidetable.v1.SensorEventBatch"

MESSAGE_TYPE = "message_type"
EVENT_TIME = "event_time"
EVENT_ID = "event_id"
# Set by Pub/Sub itself on topics with a schema; no client can publish an attribute that begins with "goog".
ENCODING = "googclient_schemaencoding"


class Message(NamedTuple):
    """What was received: the payload, its attributes, and what Pub/Sub says of it."""

    data: bytes
    attributes: Mapping[str, str]
    message_id: str = ""
    publish_time: datetime | None = None
    ordering_key: str = ""

    @property
    def is_batch(self) -> bool:
        return self.attributes.get(MESSAGE_TYPE) == BATCH_TYPE
