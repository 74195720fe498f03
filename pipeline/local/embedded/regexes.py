"""Regular expressions of bytes in RE2's syntax, matched by Python's engine.

Only what both write alike is taken, and what is easily translated: the rest answers UNIMPLEMENTED.
"""

import re
from collections.abc import Callable

from pipeline.local.embedded.refusals import invalid, not_built

_TOKEN = re.compile(
    rb"""
    (?:
        (?P<atom>
            \\(?:C|[adDfnrtvwW]|x[0-9a-fA-F]{2}|[^0-9a-zA-Z])                         # a byte, or one of a class
          | \[\^?+\]?+(?:\\(?:[dwfnrtva]|x[0-9a-fA-F]{2}|[^0-9a-zA-Z])|[^][\\])*+\]  # a set
          | \{(?![0-9]+(?:,[0-9]*)?\})
          | [^\\[({|*+?$^]                                                           # a byte, or the end of a group
        )
        (?P<repeated>(?:[*+?]|\{[0-9]+(?:,[0-9]*)?\})\??(?![*+?{]))?
      | (?P<place>(?:\\[bAz]|[$^])(?![*+?{]))
      | (?P<group>\((?:\?:|(?!\?))|\|)
    )
    """,
    re.VERBOSE | re.DOTALL,
)
_TRANSLATED = {rb"\C": rb"[\x00-\xff]", rb"\z": rb"\Z", b"$": rb"\Z", b"{": rb"\{"}


def matcher(pattern: bytes | str, field: str) -> Callable[[bytes], bool]:
    """Returns a function that tells whether a pattern matches a whole text.

    Args:
        pattern: a regular expression in RE2's syntax.
        field: the filter's field, for messages.
    """
    source = pattern.encode() if isinstance(pattern, str) else pattern
    tokens, at = [], 0
    while at < len(source):
        token = _TOKEN.match(source, at)
        if not token:
            raise not_built(f"regular expression with {source[at : at + 10]!r}")
        tokens += [_TRANSLATED.get(part, part) for part in token.groups(b"")]
        at = token.end()
    try:
        found = re.compile(b"".join(tokens))
    except re.error as error:
        raise invalid(f"Error in field '{field}' : {error}") from error
    return lambda text: found.fullmatch(text) is not None
