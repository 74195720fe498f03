"""Message types: how messages of any type become events, and how to try that without a pipeline."""
