"""Groups of windows: when their panes fire, and which rows a pane writes."""
