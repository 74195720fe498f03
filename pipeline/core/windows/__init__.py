"""Fixed windows, windows of a calendar, and the shorter windows that make up a longer one."""
