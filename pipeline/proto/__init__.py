"""Code that ``make protos`` generates from ``protos/``; not edited by hand."""
