"""Types of parameters that take a file to read: what can't be read is refused before the command begins."""

import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import click

from pipeline.core.notation.documents import MAX_BYTES, is_named_pipe, read_text, text_of


class InputPath(click.Path):
    """The path of a file, for commands that read it piece by piece."""

    def __init__(self) -> None:
        super().__init__(exists=True, dir_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        if is_named_pipe(path):
            self.fail(f"File {str(path)!r} is a named pipe, not a file.", param, ctx)
        return path


class InputText(NamedTuple):
    """The text of a file, and the file's name for messages."""

    name: str
    text: str


class TextFile(click.ParamType):
    """A file that a person wrote, or ``-`` for standard input; the command receives an :class:`InputText`."""

    name = "filename"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, InputText):
            return value
        name = "<stdin>" if value == "-" else str(value)
        try:
            if value != "-":
                return InputText(name, read_text(Path(value)))
            data = sys.stdin.buffer.read(MAX_BYTES + 1)
            if len(data) > MAX_BYTES:
                raise ValueError(f"it is larger than {MAX_BYTES:,} bytes")
            return InputText(name, text_of(data))
        except ValueError as error:
            self.fail(f"{name}: {error}", param, ctx)
