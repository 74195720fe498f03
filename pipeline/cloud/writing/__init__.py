"""Writes rows in bulk with retries, and rewrites rows."""
