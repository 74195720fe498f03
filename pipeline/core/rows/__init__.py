"""Rows and their bytes, aggregate rows, rows of newest readings, and the records that readers return."""
