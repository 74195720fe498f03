"""Alerts: rules, the states that a sensor's readings lead to, and their rows and messages."""
