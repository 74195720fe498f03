"""Roll-ups: the statistics of groups of sensors, each the merge of its sensors' windows."""
