"""Compiles a mapping against the type of its messages, and makes events with it."""
