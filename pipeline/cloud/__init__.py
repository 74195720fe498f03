"""Bigtable and Pub/Sub through Google's clients, without Beam: tables, policies, rows read back, errors explained."""
