"""Table schemas: row keys, layouts, families, policies, tiers. The writer and the readers share this code."""
