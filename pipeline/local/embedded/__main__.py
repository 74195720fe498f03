"""Serves both APIs on a loopback port: ``python -m pipeline.local.embedded --port=8086``."""

import argparse
import asyncio
import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec


def main() -> None:
    """Serves until the process ends."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.local.embedded", description=__doc__)
    parser.add_argument("--port", type=int, required=True, help="the port on 127.0.0.1")
    port = parser.parse_args().port
    # Only the messages of Google's packages are needed: their clients would take two thirds of the time to start.
    for package in ("google.pubsub_v1", "google.cloud.bigtable_v2", "google.cloud.bigtable_admin_v2"):
        if spec := find_spec(package):
            sys.modules[package] = module_from_spec(spec)
    asyncio.run(import_module("pipeline.local.embedded.server").serve(port))


if __name__ == "__main__":
    main()
