"""``tidetable repair``: recomputes aggregate rows from their raw rows."""
