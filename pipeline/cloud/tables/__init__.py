"""Administers tables: their families, policies and stored schemas."""
