"""Files of records as sensor events: CSV, NDJSON, length-delimited protobuf; and records of any format as mappings."""
