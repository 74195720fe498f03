"""Tables, families, policies and stored schemas."""
