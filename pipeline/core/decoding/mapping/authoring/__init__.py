"""Helps people who write mappings: checks what one leaves out, and drafts one."""
