"""``tidetable mapping``: checks mappings, tries them on messages, and drafts them."""
