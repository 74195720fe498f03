"""Table schemas: row keys, layouts, families, tiers. The writer and the readers share this code."""
