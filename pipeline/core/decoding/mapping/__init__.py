"""Mappings: how messages of other types become events. Nothing in a mapping is evaluated as code."""
