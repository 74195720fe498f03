"""``tidetable table``: create, adopt, compare, describe and delete tables."""
