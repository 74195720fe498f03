"""The ``tidetable`` command line: everything around the job."""
