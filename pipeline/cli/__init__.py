"""The ``tidetable`` command line: its root, and what its commands share."""
