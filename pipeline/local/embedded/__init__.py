"""Bigtable and Pub/Sub in memory, for trying out and for tests where Google's emulators are not installed.

One process, without durability. What is not built answers UNIMPLEMENTED with its name.
"""
