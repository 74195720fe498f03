"""Answers to readers: arguments, open windows, gaps, points of a chart, JSON."""
