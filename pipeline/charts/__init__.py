"""Draws charts of time series, for a terminal or as a PNG."""
