"""Charts of time series, for a terminal and as PNG."""
