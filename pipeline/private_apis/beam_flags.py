"""Finds flags that neither Beam nor the job declares. Beam itself only logs and ignores them.

Relies on, in ``apache-beam``: each subclass of ``PipelineOptions`` declares its flags in ``_add_argparse_args``, to
which ``PipelineOptions.get_all_options`` in apache_beam/options/pipeline_options.py passes an argparse parser. Some
classes declare the same flag. Overriding this method is public; calling it is not.
"""

import argparse
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from apache_beam.options.pipeline_options import PipelineOptions


class UnreadableFlag(ValueError):
    """A flag with a value that the parser refuses. ``str()`` is the parser's message."""


class CheckedFlags(NamedTuple):
    """The unknown arguments of a command line, and the flags to choose from."""

    unknown: list[str]
    """Undeclared arguments, with their values."""
    declared: list[str]
    """All declared flags."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UnreadableFlag(message)


class _Group:
    """An argument group that lists its flags. In argparse, no public attribute does."""

    def __init__(self, parser: argparse.ArgumentParser, title: str) -> None:
        self._group = parser.add_argument_group(title)
        self.flags: list[str] = []

    def add_argument(self, *names: str, **properties: Any) -> argparse.Action:
        action = self._group.add_argument(*names, **properties)
        self.flags += action.option_strings
        return action

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)


def checked_flags(argv: Sequence[str], own: type[PipelineOptions], *, accept_own: bool) -> CheckedFlags:
    """Finds undeclared arguments. With ``accept_own`` and ``--help``, prints all flags and exits.

    Args:
        argv: the command line.
        own: declares the flags of the job.
        accept_own: whether the flags of ``own`` and ``--help`` may be set; else they are unknown.

    Raises:
        UnreadableFlag: a value that Beam's own parser refuses.
    """
    parser = _Parser(
        prog="python -m pipeline",
        usage="python -m pipeline [flags]",
        add_help=accept_own,
        allow_abbrev=False,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        conflict_handler="resolve",  # for flags that several classes declare
    )
    declared = ["-h", "--help"] if accept_own else []
    if accept_own:
        group = _Group(parser, "Tidetable")
        own._add_argparse_args(group)
        declared += group.flags
    group = _Group(parser, "Apache Beam")
    for options in dict.fromkeys(PipelineOptions.__subclasses__()):
        if options is not own:
            options._add_argparse_args(group)
    declared += group.flags
    _, unknown = parser.parse_known_args(list(argv))
    return CheckedFlags(unknown, declared)
