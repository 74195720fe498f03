"""Turns dead letters into records and back, and refused rows into dead letters."""
