"""Files of records as sensor events: CSV, NDJSON, length-delimited protobuf, Avro, Parquet."""
