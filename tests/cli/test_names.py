"""Names of resources, wherever a person gives one: a name that Google Cloud does not allow is refused there."""

from collections.abc import Iterator

import click
from click.testing import CliRunner

from pipeline.cli.root import main
from tests.cli.commands import all_commands

# By the last word of an option, so that an option of a new command is tested too.
REFUSED = {
    "project": ["town", "Town-Hall", "town_hall", "town-hall-", "projects/town-hall", "town hall"],
    "instance": ["Main", "1st", "a/b", "i" * 34],
    "table": ["a/b", "a b", "-a", "t" * 51],
    "profile": ["a/b", "p" * 51],
    "topic": ["events", "projects/town/topics/events", "projects/town-hall/topics/e", "projects/town-hall/topics/a/b"],
    "subscription": ["events", "projects/town/subscriptions/events", "projects/town-hall/subscriptions/1st"],
}
ALLOWED = {
    "project": ["my-project", "example.com:my-project"],
    "instance": ["i", "prod-1"],
    "table": ["sensors_2.1"],
    "profile": ["", "batch-reads"],
    "topic": ["projects/example.com:my-project/topics/events"],
    "subscription": ["projects/my-project/subscriptions/sub+1"],
}
# A job whose other flags are right.
JOB = {
    "--project": "my-project",
    "--instance": "i",
    "--table": "t",
    "--dead-letters": "drop",
    "--input-topic": "projects/my-project/topics/events",
}


def options() -> Iterator[tuple[str, click.Command, click.Option, str]]:
    """Yields each option that names a resource, with its command, and the kind of the resource."""
    for path, command in all_commands():
        for option in command.params:
            if isinstance(option, click.Option) and (kind := option.opts[0].rpartition("-")[2]) in REFUSED:
                yield path, command, option, kind


def refusal(path: str, option: click.Option, value: str) -> str:
    """Returns what a command says about the value of one option."""
    others = JOB if path == "run" else {}
    words = [word for name, given in others.items() if name not in option.opts for word in (name, given)]
    if option.opts[0] == "--input-subscription":
        words = words[:-2]  # a job reads only one of the two
    ran = CliRunner().invoke(main, [*path.split(), option.opts[0], value, *words])
    assert ran.exit_code == 2, (path, option.opts, value, ran.output)
    return ran.stderr


def test_refused() -> None:
    """Every command refuses the name that a job would refuse, with the option and the rule."""
    found = list(options())
    assert {kind for *_, kind in found} == REFUSED.keys()
    for path, _, option, kind in found:
        for value in REFUSED[kind]:
            message = refusal(path, option, value)
            assert "is not a valid name on Google Cloud: " in message or "is not a full path; write " in message
            assert any(name in message.replace("_", "-") for name in option.opts), message


def test_allowed() -> None:
    """Old projects of a domain have allowed names too. ``run`` passes its names on to the job."""
    for path, command, option, kind in options():
        for value in ALLOWED[kind] if path != "run" else []:
            assert option.process_value(click.Context(command), value) == value
