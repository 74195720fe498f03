"""Answers readers: checks arguments, computes open windows, fills gaps, chooses a chart's points, formats JSON."""
