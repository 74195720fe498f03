"""Serves both APIs on a loopback port: ``python -m pipeline.local.embedded --port=8086``."""

import argparse
import asyncio

from pipeline.local.embedded.server import serve

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m pipeline.local.embedded", description=__doc__)
    parser.add_argument("--port", type=int, required=True, help="the port on 127.0.0.1")
    asyncio.run(serve(parser.parse_args().port))
