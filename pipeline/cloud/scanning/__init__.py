"""Reads of rows, with filters and retries."""
