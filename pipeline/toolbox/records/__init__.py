"""Files of records as sensor events: CSV and NDJSON, plain or gzipped, one line at a time."""
