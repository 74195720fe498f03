"""Helps to write a mapping: shows what it leaves out, and drafts one."""
