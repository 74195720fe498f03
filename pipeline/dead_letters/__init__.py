"""``tidetable dead-letters``: list, show, export and replay dead letters."""
