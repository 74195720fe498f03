"""The job: its flags, its launch checks, its graph, and how it runs and stops."""
