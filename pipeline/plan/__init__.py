"""``tidetable plan``: reckons size and cost."""
