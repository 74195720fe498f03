"""``tidetable forget``: removes every row of a sensor."""
