"""``tidetable read``: sensors, readings and aggregates on a terminal, as JSON, or as a chart."""
