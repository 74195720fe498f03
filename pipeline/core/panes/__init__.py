"""Decides when the windows of a group of sensors fire, and which rows a pane writes."""
