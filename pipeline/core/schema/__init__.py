"""What a table looks like: row keys, layouts, families, tiers. The writer and the readers share all of it."""
