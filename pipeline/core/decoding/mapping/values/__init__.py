"""Turns the values of messages, by their types, into numbers, texts and times."""
