"""Reads rows, with filters and retries."""
