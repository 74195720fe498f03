"""The Bigtable table as a thing of its own: families, garbage collection, and reading rows back."""
