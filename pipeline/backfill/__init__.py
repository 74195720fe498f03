"""``tidetable backfill``: writes readings from files to a table, as if they had been streamed."""
