"""JSON as its standard defines it: without NaN and infinities, and without a name twice in one object."""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any, NoReturn

from pipeline.core.notation.text import shown


class StrictDecoder(json.JSONDecoder):
    """Decodes JSON, and refuses what Python's decoder accepts beyond the standard.

    Args:
        parse_int: converts the digits of an integer; by default to an ``int``.
        parse_float: converts the text of any other number; by default to a ``float``.
    """

    def __init__(
        self, parse_int: Callable[[str], Any] | None = None, parse_float: Callable[[str], Any] | None = None
    ) -> None:
        super().__init__(
            parse_int=parse_int, parse_float=parse_float, parse_constant=_refuse, object_pairs_hook=_members
        )

    def decode(self, text: str, *_: Any) -> Any:
        """Returns the value as Python's. Raises ValueError with a message of one line."""
        try:
            return super().decode(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"{error.msg.removesuffix(' at')} at character {error.pos + 1}") from None
        except RecursionError:
            raise ValueError("it is nested too deeply") from None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        ((name, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"{shown(name)} appears twice")
    return members
