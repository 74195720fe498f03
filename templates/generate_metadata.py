"""Writes ``metadata.json``, the description of the Flex Template, with a parameter for each flag of the job.

.venv/bin/python templates/generate_metadata.py
"""

import json
import sys

from pipeline.job.flags import parameters

METADATA = {
    "name": "Tidetable",
    "description": "Reads protobuf sensor events from Pub/Sub and writes a time-series table in Bigtable: one raw row "
    "per event and one aggregate row per sensor and window. Messages and events that are refused become dead letters. "
    "At-least-once mode is cheaper, and a redelivered event counts once in it too.",
    "streaming": True,
    "supportsAtLeastOnce": True,
    "supportsExactlyOnce": True,
    "defaultStreamingMode": "EXACTLY_ONCE",
}


if __name__ == "__main__":
    json.dump(METADATA | {"parameters": parameters()}, sys.stdout, indent=2)
    print()
