"""Writers of rows: bulk writes with retries, and rewriting of rows."""
