"""Which row keys answer a question, and what the rows contain."""
