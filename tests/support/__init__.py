"""What several test modules share: servers, tables in memory, streams, strategies. No module here contains a test."""
