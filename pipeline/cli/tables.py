"""The tables and blocks that commands print. Only this module declares columns, so that none cuts what a cell contains.

On a terminal, columns of prose are folded between words. If the columns still don't fit, each row becomes a block of
lines. The terminal itself wraps a word that is longer than a line: an id or a time that is copied is whole, also out of
prose. A pipe gets each row in one line, however long.
"""

import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from rich import box
from rich.cells import cell_len, set_cell_size
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from pipeline.cli.console import out
from pipeline.core.notation.text import plain

_WIDTH = 1_000_000  # of a pipe: its lines are not folded
_UNBOUNDED = Console(width=_WIDTH)
_SIDE_BY_SIDE = 100  # columns of a terminal
_LEAST_PROSE = 24
_NAME_WIDTH = 12  # of a name in a block, at least


class TableColumn(NamedTuple):
    """A column, which :func:`word`, :func:`number` and :func:`prose` declare."""

    header: str
    is_prose: bool = False
    is_number: bool = False


def word(header: str) -> TableColumn:
    """Returns a column of ids, times or names, which are never folded."""
    return TableColumn(header)


def number(header: str) -> TableColumn:
    """Returns a column of numbers, which are never folded."""
    return TableColumn(header, is_number=True)


def prose(header: str) -> TableColumn:
    """Returns a column whose text gives way to the other columns: it is folded if it has to be, and never cut."""
    return TableColumn(header, is_prose=True)


class RowBlock(NamedTuple):
    """A row as lines: a heading, and what is below it. A line without text is left out."""

    heading: str
    lines: Sequence[tuple[TableColumn, str]]


def print_table(
    columns: Sequence[TableColumn],
    rows: Iterable[Sequence[str]],
    blocks: Callable[[], Iterable[RowBlock]] | None = None,
    *,
    indent: int = 0,
    is_bare: bool = False,
) -> None:
    """Prints a table, or a block for each row on a terminal that is too narrow.

    Args:
        columns: the columns.
        rows: the cells of each row. Unprintable characters are escaped.
        blocks: returns the blocks. By default, the first column's cell is the heading of the others.
        indent: the number of spaces before the table.
        is_bare: whether the table has no line below its headers.
    """
    listed = [[plain(cell) for cell in row] for row in rows]
    table = Table(
        box=None if is_bare else box.SIMPLE,
        show_header=any(column.header for column in columns),
        pad_edge=False,
        padding=(0, 3, 0, 0) if is_bare else (0, 1),
        collapse_padding=True,
    )
    for index, column in enumerate(columns):
        header = plain(column.header)
        cells = header, *(row[index] for row in listed)
        width = max(map(cell_len, cells))
        longest_word = max((cell_len(each) for cell in cells for each in cell.split()), default=0)
        table.add_column(
            Text(header),
            justify="right" if column.is_number else "left",
            overflow="fold",
            width=min(width, max(longest_word, _LEAST_PROSE)) if column.is_prose else width,
        )
    for row in listed:
        table.add_row(*map(Text, row))
    narrowest = Measurement.get(_UNBOUNDED, _UNBOUNDED.options, table).minimum + indent
    if out.is_terminal and narrowest > out.width and not all(column.is_prose for column in columns):
        for block in blocks() if blocks else _blocks(columns, listed):
            print_block(*block)
        return
    for column, drawn in zip(columns, table.columns, strict=True):
        if column.is_prose:
            drawn.width = None
    render(out, _indented(out, table, indent))


def print_block(heading: str, lines: Iterable[tuple[TableColumn, str]]) -> None:
    """Prints a heading, and below it a line for each name and text. Leaves out a line without text."""
    named = [(plain(column.header), column.is_prose, plain(text)) for column, text in lines if text]
    width = max((_NAME_WIDTH, *(cell_len(name) for name, *_ in named)))
    out.print(Text(plain(heading), style="bold"), soft_wrap=True)
    for name, is_prose, text in named:
        room = out.width - width - 4
        is_folded = out.is_terminal and is_prose and room > _LEAST_PROSE - 4
        folded = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) if is_folded else [text]
        for begin, line in zip([name, *[""] * len(folded)], folded, strict=False):
            out.print(Text(f"  {set_cell_size(begin, width)}  {line}"), soft_wrap=True)
    out.print()


def print_beside(console: Console, left: RenderableType, right: RenderableType) -> None:
    """Prints two texts: side by side on a wide terminal."""
    if console.is_terminal and console.width >= _SIDE_BY_SIDE:
        half = Column(ratio=1, overflow="fold")
        grid = Table.grid(half, half.copy(), padding=(0, 3), expand=True)
        grid.add_row(left, right)
        render(console, _indented(console, grid, 2))
    else:
        render(console, _indented(console, left, 2))
        render(console, _indented(console, right, 2))


def render(console: Console, what: RenderableType) -> None:
    """Prints to a console; lines are folded only on a terminal."""
    is_pipe = not console.is_terminal
    target = Console(file=console.file, width=_WIDTH, highlight=False, emoji=False) if is_pipe else console
    target.print(what)


def _indented(console: Console, what: RenderableType, columns: int) -> Padding:
    return Padding(what, (0, 0, 0, columns), expand=console.is_terminal)  # a pipe's lines have no width to fill


def _blocks(columns: Sequence[TableColumn], rows: Iterable[Sequence[str]]) -> Iterator[RowBlock]:
    for row in rows:
        yield RowBlock(row[0], list(zip(columns[1:], row[1:], strict=True)))
