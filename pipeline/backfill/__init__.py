"""``tidetable backfill``: files of readings into a table, as if they had been streamed."""
