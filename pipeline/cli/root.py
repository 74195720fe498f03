"""``tidetable COMMAND``: imports only the requested command, and prints a problem as one line."""

import importlib
import os
from itertools import groupby
from typing import NamedTuple

import click
from click.shell_completion import CompletionItem

from pipeline import __version__
from pipeline.cli.entry import INTERRUPTED, Importing
from pipeline.cli.hints import EXAMPLES, OLD_WORDS, add_example, nearest, suggest_choices
from pipeline.cli.profiles import COMMAND_LINE_ONLY, Profile, config_file, load_profile, name_variables, variable
from pipeline.cloud.connection.problems import ServerError
from pipeline.core.notation.text import plain


class Tool(NamedTuple):
    """A command: its section of the help, where it is defined, and what it does."""

    section: str
    defined: str
    summary: str


# A command's module is imported only when the command is used: Google's clients take a second to import. The summaries
# are here because the list of commands imports none of them.
COMMANDS = {
    "demo": Tool("Start", "pipeline.local.demo:demo", "Run the whole job on emulators and verify its table."),
    "emulators": Tool("Start", "pipeline.local.emulators:emulators", "Run the Pub/Sub and Bigtable emulators."),
    "plan": Tool("Run", "pipeline.plan.command:plan", "Estimate the size and the cost of a fleet's job and table."),
    "table": Tool("Run", "pipeline.table.command:table", "Create, change, adopt, describe or delete a table."),
    "mapping": Tool("Run", "pipeline.mapping:mapping", "Check, try or draft how your own messages become events."),
    "alerts": Tool("Run", "pipeline.alerts:alerts", "Store, mute or show rules of alerts, or deliver alerts."),
    "run": Tool("Run", "pipeline.run:run", "Run the streaming job, here or on Dataflow."),
    "simulate": Tool("Feed", "pipeline.local.simulate:simulate", "Publish a simulated fleet of sensors."),
    "publish": Tool("Feed", "pipeline.local.publish:publish", "Publish readings from a file."),
    "backfill": Tool(
        "Feed", "pipeline.backfill.command:backfill", "Write readings from files to a table, as if streamed."
    ),
    "read": Tool("Read", "pipeline.reading.command:read", "Read sensors, their readings and aggregates, or plot them."),
    "results": Tool("Read", "pipeline.results:results", "Follow the results of finished windows."),
    "serve": Tool(
        "Read", "pipeline.serve.command:serve", "Serve a table over HTTP: a page for the browser, and an API."
    ),
    "dead-letters": Tool(
        "Maintain", "pipeline.dead_letters.command:dead_letters", "Look at dead letters, replay or export them."
    ),
    "forget": Tool("Maintain", "pipeline.forget:forget", "Remove every row of a sensor."),
    "repair": Tool("Maintain", "pipeline.repair.command:repair", "Recompute aggregates from their raw rows."),
}


class Toolbox(click.Group):
    """A group that imports a command when it is first used.

    It gives every command environment variables and a profile for its options, an example at the end of its help, and
    suggestions for mistyped words.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 (click's signature)
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].defined.partition(":")
        with Importing():
            command = getattr(importlib.import_module(module), name)
        _equip(command, cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            name, command, rest = super().resolve_command(ctx, args)
        except click.exceptions.NoSuchCommand as error:
            raise click.UsageError(_unknown(error.command_name), ctx) from None
        if name and command and not ctx.resilient_parsing:
            try:
                ctx.obj = load_profile(ctx.params["profile"], EXAMPLES)
                ctx.default_map = {name: ctx.obj.defaults(command, name, rest)} if ctx.obj else None
            except click.UsageError as error:  # which may contain a key of the file
                raise click.UsageError(plain(error.message)) from None
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        for section, names in groupby(COMMANDS, key=lambda name: COMMANDS[name].section):
            with formatter.section(section):
                formatter.write_dl([(name.ljust(max(map(len, COMMANDS))), COMMANDS[name].summary) for name in names])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        # click's own imports every command for its help.
        names = [CompletionItem(name, help=COMMANDS[name].summary) for name in COMMANDS if name.startswith(incomplete)]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            ctx.exit(INTERRUPTED)  # click's own code would be 1
        except (click.NoSuchOption, click.exceptions.NoSuchCommand) as error:
            word = error.option_name if isinstance(error, click.NoSuchOption) else error.command_name
            meant = OLD_WORDS.get(word) or OLD_WORDS.get(f"{error.ctx.info_name if error.ctx else ''} {word}")
            if meant is None:
                raise
            raise click.UsageError(f"{error.message} Did you mean {meant!r}?", error.ctx) from None
        except click.BadParameter as error:
            raise click.UsageError(error.format_message() + _origin(error, ctx.obj), error.ctx) from None
        except ServerError as problem:
            raise click.ClickException(plain(str(problem))) from problem


def _equip(command: click.Command, path: str) -> None:
    name_variables(command, path)
    suggest_choices(command)
    add_example(command, path)
    if isinstance(command, click.Group):
        for name, sub in command.commands.items():
            _equip(sub, f"{path} {name}")


def _unknown(name: str) -> str:
    """Returns the message for a mistyped command, or for a subcommand without its group."""
    paths = {path.rpartition(" ")[2]: path for path in reversed(EXAMPLES)}
    near = nearest(name, paths)
    meant = OLD_WORDS.get(name) or (near and paths[near])
    return f"No such command {name!r}." + (f" Did you mean {meant!r}?" if meant else "")


def _origin(error: click.BadParameter, profile: Profile | None) -> str:
    """Names the setting that holds a bad value, or could supply a missing one; empty for the command line."""
    option = error.param
    if not (isinstance(option, click.Option) and isinstance(option.envvar, list) and error.ctx and option.name):
        return ""
    if isinstance(error, click.MissingParameter):
        return f" Set it, or {option.envvar[-1]}, or {option.opts[0].strip('-')} in a profile."
    source = error.ctx.get_parameter_source(option.name)
    if source is click.core.ParameterSource.ENVIRONMENT:
        return f" (from {next(name for name in option.envvar if os.environ.get(name))})"
    return f" (from {profile})" if source is click.core.ParameterSource.DEFAULT_MAP else ""


@click.group(
    cls=Toolbox,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog=(
        f"Every option can also be set by an environment variable, such as {variable('project')} for --project, and by "
        f"a profile in {config_file()}. The command line goes first, then the variable, then the profile. "
        f"Only the command line sets {', '.join(f'--{name}' for name in sorted(COMMAND_LINE_ONLY - {'help'}))}."
    ),
)
@click.option(
    "--profile", envvar=variable("profile"), metavar="NAME", help="Take options from this profile. [default: default]"
)
@click.version_option(__version__, prog_name="tidetable")
def main(profile: str | None) -> None:
    """Tidetable: sensor events from Pub/Sub to raw rows and windowed aggregates in Bigtable."""
