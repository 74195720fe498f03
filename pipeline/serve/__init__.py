"""``tidetable serve``: a read-only HTTP API over a table, and a page for the browser."""
