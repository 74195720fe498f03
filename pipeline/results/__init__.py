"""Results of finished windows, as a job publishes them: prints them as they come."""
