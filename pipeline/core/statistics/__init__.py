"""Statistics of a metric over a window that need more than a few numbers for state."""
