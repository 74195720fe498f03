"""Windows of event time: fixed ones, those of a calendar, and which shorter windows a longer one consists of."""
