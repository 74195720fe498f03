"""``tidetable COMMAND``: imports only the requested command, and prints a problem as one line."""

import importlib

import click

from pipeline import __version__
from pipeline.cli.entry import INTERRUPTED, Importing
from pipeline.cloud.errors import ServerProblem
from pipeline.core.text import plain

# A command's module is imported only when the command is used: Google's clients take a second to import.
# The help is here because listing the commands must import none of them.
COMMANDS = {
    "backfill": ("pipeline.backfill.command:backfill", "Write readings from files to a table, as if streamed."),
    "dead-letters": ("pipeline.dead_letters.command:dead_letters", "Look at dead letters, replay or export them."),
    "demo": ("pipeline.local.demo:demo", "Run the whole job on emulators and verify its table."),
    "emulators": ("pipeline.local.emulators:emulators", "Run the Pub/Sub and Bigtable emulators."),
    "publish": ("pipeline.local.publish:publish", "Publish readings from a CSV or NDJSON file."),
    "read": ("pipeline.reading.command:read", "Read sensors, their readings and aggregates, or plot them."),
    "repair": ("pipeline.repair.command:repair", "Recompute aggregates from their raw rows."),
    "simulate": ("pipeline.local.simulate:simulate", "Publish a simulated fleet of sensors."),
    "table": ("pipeline.table.command:table", "Create, adopt, compare, describe or delete a table."),
}


class Toolbox(click.Group):
    """A group that imports a command when it is first used."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        with Importing():
            return getattr(importlib.import_module(module), name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in sorted(COMMANDS)])

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)  # click's own code would be 1
        except ServerProblem as problem:
            raise click.ClickException(plain(str(problem))) from problem


@click.group(cls=Toolbox, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="tidetable")
def main() -> None:
    """Tidetable: sensor events from Pub/Sub to raw rows and hourly aggregates in Bigtable."""
