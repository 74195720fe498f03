"""``tidetable repair``: aggregate rows recomputed from their raw rows."""
