"""Parses and formats values: text, times, durations, exact numbers, values of cells."""
