"""Table schemas: row keys, layouts, families, policies, tiers. Writers and readers share this code."""
