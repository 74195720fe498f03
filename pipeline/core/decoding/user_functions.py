"""Imports the functions that users write, and names the line at which one of them failed."""

import importlib
import inspect
import traceback
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

from pipeline.core.decoding.mapping.language.model import MappingError
from pipeline.core.notation.text import error_line


def imported_function(path: str, arguments: tuple[Any, ...], takes: str) -> Callable[..., Any]:
    """Returns a function of this environment.

    Args:
        path: the function, as ``module:function``.
        arguments: arguments of the kind that the function gets.
        takes: the arguments in words, for the error.

    Raises:
        MappingError: no such function exists, or it does not take the arguments.
    """
    module, _, name = path.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:  # the module's code is the user's
        raise MappingError(
            "", f"{path!r} is not a function of this environment, as module:function: {error_line(error)}"
        ) from error
    if not callable(function) or inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise MappingError("", f"{path!r} is not a function that returns events")
    try:
        inspect.signature(function).bind(*arguments)
    except (TypeError, ValueError) as error:
        raise MappingError("", f"{path!r} does not take {takes}: {error}") from error
    return function


def place_of(error: BaseException) -> str:
    """Returns the function's file and the last line there that ran; nothing if the function's caller raised it."""
    _, *inside = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in inside if frame.filename == inside[0].filename]  # without the libraries that it calls
    return f"{PurePath(own[-1].filename).name}:{own[-1].lineno}: " if own else ""
