"""The Python API: records of a table, and data frames."""
