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


class _FlagParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UnreadableFlag(message)


class Flag(NamedTuple):
    """A declared flag."""

    name: str
    """With dashes."""
    group: str
    """The title of its group in the help."""
    help: str
    metavar: str | None = None
    default: str | None = None
    repeatable: bool = False


class _Recorder:
    """A parser, or a group of its arguments, that records its flags. In argparse, no public attribute lists them."""

    def __init__(self, parser: Any, title: str, flags: list[Flag]) -> None:
        self._parser = parser
        self._title = title
        self._flags = flags

    def add_argument(self, *names: str, **properties: Any) -> argparse.Action:
        action = self._parser.add_argument(*names, **properties)
        repeatable = properties.get("action") == "append"
        for name in action.option_strings:
            flag = Flag(name, self._title, action.help or "", properties.get("metavar"), action.default, repeatable)
            self._flags.append(flag)
        return action

    def add_argument_group(self, title: str) -> "_Recorder":
        return _Recorder(self._parser.add_argument_group(title), title, self._flags)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)


def declared_flags(own: type[PipelineOptions]) -> list[Flag]:
    """Returns the flags that ``own`` declares."""
    return _declare(_new_parser(add_help=False), own)


def checked_flags(argv: Sequence[str], own: type[PipelineOptions], *, accept_own: bool) -> CheckedFlags:
    """Finds undeclared arguments. With ``accept_own`` and ``--help``, prints all flags and exits.

    Args:
        argv: the command line.
        own: declares the flags of the job.
        accept_own: whether the flags of ``own`` and ``--help`` may be set; else they are unknown.

    Raises:
        UnreadableFlag: a value that Beam's own parser refuses.
    """
    parser = _new_parser(add_help=accept_own)
    flags = [*(_declare(parser, own) if accept_own else ()), *_declare_beams(parser, own)]
    declared = [*(("-h", "--help") if accept_own else ()), *(flag.name for flag in flags)]
    _, unknown = parser.parse_known_args(list(argv))
    return CheckedFlags(unknown, declared)


def _new_parser(*, add_help: bool) -> _FlagParser:
    return _FlagParser(
        prog="python -m pipeline",
        usage="python -m pipeline [flags]",
        add_help=add_help,
        allow_abbrev=False,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        conflict_handler="resolve",  # for flags that several classes declare
    )


def _declare(parser: _FlagParser, own: type[PipelineOptions]) -> list[Flag]:
    flags: list[Flag] = []
    own._add_argparse_args(_Recorder(parser, "Tidetable", flags))
    return flags


def _declare_beams(parser: _FlagParser, own: type[PipelineOptions]) -> list[Flag]:
    flags: list[Flag] = []
    group = _Recorder(parser.add_argument_group("Apache Beam"), "Apache Beam", flags)
    for options in dict.fromkeys(PipelineOptions.__subclasses__()):
        if options is not own:
            options._add_argparse_args(group)
    return flags
