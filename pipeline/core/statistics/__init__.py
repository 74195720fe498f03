"""Statistics of a metric over a window: what a window keeps, and the cells computed from it."""
