"""Publishes and subscribes, reads backlogs, and loads the schemas of topics."""
