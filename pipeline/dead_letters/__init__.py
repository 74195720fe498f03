"""``tidetable dead-letters``: lists, shows, exports and replays dead letters."""
