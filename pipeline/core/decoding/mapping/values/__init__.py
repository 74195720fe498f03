"""What messages contain, by their types, and how it becomes numbers, texts and times."""
