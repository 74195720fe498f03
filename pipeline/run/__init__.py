"""``tidetable run``: the streaming job, ``python -m pipeline``, as a command of the toolbox."""
