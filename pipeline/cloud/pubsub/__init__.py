"""Publishing, subscribing, backlogs, and schemas of topics."""
