"""Hints for who types a command: an example at the end of each one's help, and suggestions for mistyped words.

The order is that in which people need the commands.
"""

from collections.abc import Iterable
from typing import Any

import click

# By the command as typed after ``tidetable``. A group shows where to begin.
EXAMPLES = {
    "demo": "tidetable demo --sensor-count 5",
    "emulators": "tidetable emulators run bash",
    "emulators run": "tidetable emulators run bash",
    "emulators start": "tidetable emulators start",
    "plan": "tidetable plan --sensor-count 1000000 --interval 1m --metrics 4",
    "table": "tidetable table describe",
    "table create": "tidetable table create --tier 15m=stats --tier 1d=daily",
    "table apply": "tidetable table apply --schema schema.toml",
    "table diff": "tidetable table diff --gc raw=maxage=30d",
    "table describe": "tidetable table describe --format toml",
    "table adopt": "tidetable table adopt --dry-run",
    "table delete": "tidetable table delete",
    "mapping": "tidetable mapping check --message-mapping report.toml --message-descriptors acme.binpb",
    "mapping draft": ("tidetable mapping draft readings.csv --output readings.toml"),
    "mapping check": "tidetable mapping check --message-mapping report.toml --message-descriptors acme.binpb",
    "mapping try": (
        "tidetable mapping try --subscription projects/my-project/subscriptions/events --message-mapping report.toml "
        "--message-descriptors acme.binpb"
    ),
    "alerts": "tidetable alerts apply rules.toml",
    "alerts apply": "tidetable alerts apply rules.toml",
    "alerts mute": "tidetable alerts mute freezer-warm freezer-2 --for 2h",
    "alerts rules": "tidetable alerts rules --format toml",
    "alerts deliver": (
        "tidetable alerts deliver --alerts-subscription projects/my-project/subscriptions/alerts "
        "--url https://example.com/alerts"
    ),
    "run": (
        "tidetable run --input-subscription projects/my-project/subscriptions/events "
        "--dead-letter-topic projects/my-project/topics/dead-letters"
    ),
    "simulate": "tidetable simulate --topic projects/my-project/topics/events --sensor-count 50 --duration 1h",
    "publish": "tidetable publish readings.csv --topic projects/my-project/topics/events --batch 100",
    "backfill": "tidetable backfill readings.csv --refused refused.ndjson",
    "read": "tidetable read latest-events balloon-1",
    "read sensors": "tidetable read sensors --prefix balloon-",
    "read latest-events": "tidetable read latest-events balloon-1 balloon-2 --metric temperature",
    "read latest-readings": "tidetable read latest-readings --prefix balloon-",
    "read events": "tidetable read events balloon-1 --from -2h",
    "read aggregates": "tidetable read aggregates balloon-1 --tier 1d --from 2026-02-01 --to 2026-03-01",
    "read rollups": "tidetable read rollups site north --from -7d",
    "read chart-points": "tidetable read chart-points balloon-1 --metric temperature --from -7d",
    "read alerts": "tidetable read alerts --from -1d",
    "read plot": "tidetable read plot balloon-1 --metric temperature --from -7d",
    "results": "tidetable results follow --results-subscription projects/my-project/subscriptions/results",
    "results follow": "tidetable results follow --results-subscription projects/my-project/subscriptions/results",
    "forget": "tidetable forget balloon-1 --dry-run",
    "serve": "tidetable serve --port 8080",
    "dead-letters": "tidetable dead-letters list --subscription projects/my-project/subscriptions/dead-letters",
    "dead-letters list": "tidetable dead-letters list --subscription projects/my-project/subscriptions/dead-letters",
    "dead-letters show": (
        "tidetable dead-letters show --subscription projects/my-project/subscriptions/dead-letters "
        "--reason UNPARSEABLE --from -1d"
    ),
    "dead-letters replay": (
        "tidetable dead-letters replay --subscription projects/my-project/subscriptions/dead-letters "
        "--topic projects/my-project/topics/events --dry-run"
    ),
    "dead-letters export": (
        "tidetable dead-letters export letters.ndjson --subscription projects/my-project/subscriptions/dead-letters"
    ),
    "repair": "tidetable repair --from -7d --to now --dry-run",
}
# By a word that is not in the command line: a command without its group, or an option.
OLD_WORDS = {
    "range": "read events",
    "prefix": "read events",
    "latest": "read latest-events or latest-readings",
    "points": "read chart-points",
    "--apply": "table apply",
    "--at-most": "--max-replays",
    "--json": "--format json",
    "--max": "--scan-limit",
    "--out": "--output",
    "--since": "--from",
    "--toml": "--format toml",
    "--until": "--to",
    "--force": "--include-unsettled",
    "--raw-family": "table adopt",
    "--stats-family": "table adopt",
    "--meta-family": "table adopt",
    "alerts show": "alerts rules",
    "alerts check": "alerts apply --dry-run",
    "--window": "--tier",
    "--every": "--interval",
}
_WIDTH = 100  # characters in a line of help
_SETTINGS = "export TIDETABLE_PROJECT=my-project TIDETABLE_INSTANCE=my-instance TIDETABLE_TABLE=sensors"


class ExampleGroup(click.Group):
    """A group that lists its commands in the order of :data:`EXAMPLES`; those without an example come last."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        order = list(EXAMPLES)
        paths = {name: f"{self.name} {name}" for name in self.commands}
        return sorted(paths, key=lambda name: order.index(paths[name]) if paths[name] in order else len(order))


def add_example(command: click.Command, path: str) -> None:
    """Changes a command so that its help ends with its example, if it has one."""
    if path not in EXAMPLES:
        return
    lines = [EXAMPLES[path].replace(" --", " \\\n      --")] if len(EXAMPLES[path]) > _WIDTH else [EXAMPLES[path]]
    if _has_table(command):
        lines.insert(0, _SETTINGS)
    command.epilog = "\b\nExample:\n" + "\n".join(f"  {line}" for line in lines)


def _has_table(command: click.Command) -> bool:
    if isinstance(command, click.Group):
        return any(map(_has_table, command.commands.values()))
    return any("--table" in option.opts for option in command.params)


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
