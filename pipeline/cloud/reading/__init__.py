"""The Python API: the records of a table, and data frames."""
