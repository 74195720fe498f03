"""``tidetable alerts``: stores, checks and shows the rules of a table's alerts."""
