"""Beam transforms: thin shells around :mod:`pipeline.core`."""
