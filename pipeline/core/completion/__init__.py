"""Completes windows from the table: restores them, finds their neighbours, audits them, keeps the work list."""
