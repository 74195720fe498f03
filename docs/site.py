"""Prepares the pages for the site that mkdocs.yml describes."""

import re

_OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./[^)]*\)")


def on_page_markdown(markdown: str, **_: object) -> str:
    """Leaves out links to files of the repository, which the site does not contain: their text stays."""
    return _OUTSIDE.sub(r"\1", markdown)
