"""``tidetable plan``: estimates size and cost."""
