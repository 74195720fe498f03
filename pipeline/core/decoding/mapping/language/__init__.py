"""The language of mappings: paths, the values that a mapping declares, and their notation in TOML."""
