"""Dead letters as records, and rows that Bigtable refused as dead letters."""
