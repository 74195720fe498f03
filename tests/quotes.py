"""The blocks of the documentation that quote what code prints: ``python -m tests.quotes`` refreshes them.

A page marks such a block with ``<!-- quoted: NAME -->`` and ``<!-- end -->``.
"""

import re
from collections.abc import Callable
from pathlib import Path

from click.testing import CliRunner

from pipeline.cli.root import COMMANDS, main
from tests.benchmarks import sizes, state_size
from tests.benchmarks.bench import report

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("templates/*.md")])
_BLOCK = re.compile(r"(<!-- quoted: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def _commands() -> str:
    output = CliRunner().invoke(main, ["--help"], terminal_width=110).output
    listed = output[output.index(next(iter(COMMANDS.values())).section) : output.index("  Every option")]
    return _fenced(listed.rstrip())


def _fenced(text: str) -> str:
    return f"```\n{text}\n```"


QUOTES: dict[str, Callable[[], str]] = {
    "commands": _commands,
    "sizes": lambda: _fenced("\n".join(sizes.lines())),
    "speed": lambda: "\n".join(report.quoted_lines(report.RESULT)),
    "state_size": lambda: _fenced("\n".join(state_size.lines())),
}


def refreshed(page: str) -> str:
    """Returns the page with every quoted block as it is printed now."""
    return _BLOCK.sub(lambda block: f"{block[1]}{QUOTES[block[2]]()}\n{block[3]}", page)


def quoted_names(page: str) -> list[str]:
    """Returns the names of the page's quoted blocks."""
    return [name for _, name, _ in _BLOCK.findall(page)]


if __name__ == "__main__":
    for path in PAGES:
        path.write_text(refreshed(path.read_text()))
