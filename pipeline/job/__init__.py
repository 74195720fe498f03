"""The job: its flags, its graph, its launch checks, and running it."""
