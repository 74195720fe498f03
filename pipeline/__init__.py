"""Tidetable: sensor events from Pub/Sub to raw rows and windowed aggregates in Bigtable.

Packages, each importing only from those below it:

    toolbox      the ``tidetable`` command line
    job          ``python -m pipeline``: flags, launch checks, the graph, running and stopping it
    transforms   Beam transforms, thin shells around the core
    cloud        Bigtable and Pub/Sub through Google's clients: tables, policies, publishing, reading rows back
    core         events, rows, statistics, dead letters: plain functions on plain data
    proto        generated protobuf classes
"""

__version__ = "0.1.0"
