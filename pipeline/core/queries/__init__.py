"""Finds the row keys that answer a query, and parses the rows."""
