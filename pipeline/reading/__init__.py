"""``tidetable read``: prints sensors, readings and aggregates as tables or JSON, or draws them."""
