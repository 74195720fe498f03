"""Turns messages of any type into events, in a job or to try it without one."""
