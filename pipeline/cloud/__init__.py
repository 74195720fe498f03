"""Bigtable and Pub/Sub through Google's clients, without Beam: tables, policies, reads, writes, publishing, errors."""

import warnings

# Google's Bigtable client warns at every connection to an emulator. Whoever set the variable knows that.
warnings.filterwarnings("ignore", message="Connecting to Bigtable emulator", category=RuntimeWarning)
