"""Scans of rows through ReadRows, with retries and filters."""
