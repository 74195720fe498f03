"""Rows, their mutations in bytes, the records that readers return, and aggregate rows."""
