"""Windows' results as messages: what a pane publishes, and how it is encoded."""
