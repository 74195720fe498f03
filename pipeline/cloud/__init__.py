"""Bigtable and Pub/Sub through Google's clients, without Beam: tables, policies, rows read back, errors explained."""

import warnings

# Google's Bigtable client warns at every connection to an emulator, which whoever set the variable knows.
warnings.filterwarnings("ignore", message="Connecting to Bigtable emulator", category=RuntimeWarning)
