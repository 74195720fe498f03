"""The root of the ``tidetable`` command line, and code that its commands share."""
