"""What a table already contains of a window: restoring, neighbours, audits, the work list."""
