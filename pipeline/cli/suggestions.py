"""Suggestions for mistyped words."""

from collections.abc import Iterable
from typing import Any

import click


def nearest(word: str, words: Iterable[str]) -> str | None:
    """Returns the most similar of the words, whatever its case; None if none is similar."""
    import difflib  # only after a mistake

    by_folded = {each.casefold(): each for each in words}
    near = difflib.get_close_matches(word.casefold(), by_folded, n=1)
    return by_folded[near[0]] if near else None


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """Returns the end of a message about an unknown word; empty if no known word is similar."""
    near = nearest(word, words)
    return f"; did you mean {near}?" if near else ""


class _SuggestingChoice(click.Choice):
    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        near = nearest(str(value), map(str, self.choices))
        return super().get_invalid_choice_message(value, ctx) + (f" Did you mean {near!r}?" if near else "")


def suggest_choices(command: click.Command) -> None:
    """Changes a command so that its choices suggest the nearest for a mistyped one."""
    for parameter in command.params:
        if type(parameter.type) is click.Choice:
            parameter.type = _SuggestingChoice(parameter.type.choices, parameter.type.case_sensitive)
