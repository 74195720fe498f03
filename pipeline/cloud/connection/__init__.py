"""Connects to Bigtable and Pub/Sub: names, clients, emulators, errors."""
