"""The state of a window: its readings and statistics, and their bytes."""
