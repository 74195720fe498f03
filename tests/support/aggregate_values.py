"""The values of aggregate rows, as tests compare them."""

from pipeline.core.notation.size_runs import parse_sizes


def numbers_of(cells):
    """Returns the values of an aggregate row by column, from those of its cells by qualifier.

    What a row tells of its shorter windows is left out: together, they count what the row counts.
    """
    told = cells.get(b"window_sizes")
    found = {name.decode(): float(value) for name, value in cells.items() if name not in (b"window_sizes", b"member")}
    if told is not None and "reading_count" in found:
        counted = found["reading_count"] + sum(value for name, value in found.items() if name.startswith("count_"))
        assert sum(parse_sizes(told).values()) == counted
    return found
