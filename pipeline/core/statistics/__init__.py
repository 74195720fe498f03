"""Computes the statistics of a metric over a window, and their cells."""
