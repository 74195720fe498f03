"""Profiles: named sets of options in a TOML file, such as the project, instance and table of a deployment.

.. code-block:: toml

    [profiles.default]       # applies when no profile is chosen
    project = "my-project"
    instance = "my-instance"
    table = "sensors"

    [profiles.default."read plot"]  # for one command only
    metric = "temperature"
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from pipeline.cli.hints import did_you_mean
from pipeline.core.notation.documents import parse_toml, read_text

_DEFAULT = "default"

# Consent, and the choice whether to write, belong to one command line: a setting made long ago and elsewhere must not
# delete a table.
COMMAND_LINE_ONLY = frozenset({"accept-expired", "ack", "dry-run", "force", "help", "yes"})

# These differ between commands: a setting has to name the command.
OF_ONE_COMMAND = frozenset({"output", "schema", "tier"})

# The long names of all options that a profile can set, to tell a mistyped key from one for another command. click could
# tell them only after an import of every command, which takes seconds; a test compares the list with the commands.
OPTION_NAMES = frozenset(
    """
    alerts-subscription alerts-topic all allowed-lateness app-profile attribute band batch behind-proxy
    bigtable-instance bigtable-project bigtable-table bigtable-writer by chart dead-letter-topic dead-letters
    decimal default-message-type delimiter disk duration early-firing embedded end file-decoder fill for format
    fresh from gc host id-attribute include-unsettled input-subscription input-topic insecure-http instance interval
    job-name keep key key-file late late-firing latest-family launch-checks layout limit listed live log-format long
    malformed max-future max-num-workers max-points max-record-bytes max-replays message message-decoder
    message-descriptors message-mapping meta-family metadata metadata-fields metric metrics min-count min-coverage
    newest-every once output port prefix prices project publish-time rate raw-family reason refused region report
    restart results results-encoding results-subscription results-topic rollup rollup-groups rollups rule runner
    sample scan-limit schema sdk-container-image seed sensor sensor-column sensor-count sensor-prefix sensors serve
    service-account-email silent-for statistics stats-family status-file subnetwork subscription table temp-location
    tier time-column time-unit time-zone timeout timestamp-attribute to token-file top topic unit unknown-fields url
    values wait window worker-machine-type y-max y-min
    """.split()  # noqa: SIM905 (a list would take a hundred lines)
)


@dataclass(frozen=True)
class Profile:
    """A profile. ``str()`` is its name and its file.

    Attributes:
        file: the profile's file.
        name: the profile's name.
        values: the values by the option's long name, without dashes.
        of_commands: the values for a single command, by the command as typed after ``tidetable``.
    """

    file: Path
    name: str
    values: Mapping[str, Any]
    of_commands: Mapping[str, Mapping[str, Any]]

    def __str__(self) -> str:
        return f"profile {self.name} in {self.file}"

    def defaults(self, command: click.Command, path: str, arguments: Sequence[str]) -> dict[str, Any]:
        """Returns click's ``default_map`` for a command, or for a group with the subcommand that the arguments name.

        Raises:
            click.UsageError: a key is no option of the command that it is set for, or has the wrong type.
        """
        if isinstance(command, click.Group):
            sub = command.commands.get(arguments[0]) if arguments else None
            return {arguments[0]: self.defaults(sub, f"{path} {arguments[0]}", arguments[1:])} if sub else {}
        own = self.of_commands.get(path, {})
        settings = list(settings_of(command))
        known = [name for _, names in settings for name in names]
        for key in own:
            if key not in known:
                raise click.UsageError(f"{self}: {path} has no option {key} to set{did_you_mean(key, known)}")
        found = {}
        for option, names in settings:
            for values in (own, self.values):
                if (name := next((name for name in names if name in values), None)) and option.name:
                    found[option.name] = self._value(option, name, values[name])
                    break
        return found

    def _value(self, option: click.Option, name: str, value: Any) -> Any:
        if isinstance(value, list):
            if not option.multiple:
                raise click.UsageError(f"{self}: {name} takes one value, not a list")
            return [_text(each) for each in value]
        return [_text(value)] if option.multiple else _text(value)


def config_file() -> Path:
    """Returns the path of the file with the profiles, where the system keeps such files."""
    return Path(click.get_app_dir("tidetable")) / "config.toml"


def load_profile(name: str | None, commands: Iterable[str]) -> Profile | None:
    """Reads a profile.

    Args:
        name: the profile's name; None for the profile named ``default``, if the file has one.
        commands: every command as typed after ``tidetable``.

    Raises:
        click.UsageError: the profile does not exist, or the file is not valid. The message names the file and the key.
    """
    file, wanted = config_file(), name or _DEFAULT
    if name is None and not file.exists():
        return None
    profiles = _profiles_of(file, wanted)
    if name is None and wanted not in profiles:
        return None
    chosen = profiles.get(wanted)
    if not isinstance(chosen, dict):
        raise click.UsageError(f"{file} has no profile {wanted}{did_you_mean(wanted, profiles)}")
    values = _by_option({key: value for key, value in chosen.items() if not isinstance(value, dict)})
    of_commands = {key: _by_option(value) for key, value in chosen.items() if isinstance(value, dict)}
    profile = Profile(file, wanted, values, of_commands)
    _check(profile, list(commands))
    return profile


def _profiles_of(file: Path, wanted: str) -> dict[str, Any]:
    try:
        document = parse_toml(read_text(file))
    except ValueError as error:
        if not file.exists():
            raise click.UsageError(f"no profile {wanted}: {file} does not exist") from None
        raise click.UsageError(f"{file}: {error}") from None
    profiles = document.get("profiles", {})
    for key in document:
        if key != "profiles" or not isinstance(profiles, dict):
            raise click.UsageError(f"{file}: {key}: expected only tables [profiles.NAME]")
    return profiles


def _check(profile: Profile, commands: list[str]) -> None:
    for values in (profile.values, *profile.of_commands.values()):
        for key in COMMAND_LINE_ONLY.intersection(values):
            raise click.UsageError(f"{profile}: {key} can be set on the command line only")
    for key in profile.values:
        if key in OF_ONE_COMMAND:
            raise click.UsageError(
                f"{profile}: {key} differs between commands; set it for one of them, in "
                f'[profiles.{profile.name}."COMMAND"]'
            )
        if key not in OPTION_NAMES:
            raise click.UsageError(f"{profile}: no command has an option {key}{did_you_mean(key, OPTION_NAMES)}")
    for path in profile.of_commands:
        if path not in commands:
            raise click.UsageError(f"{profile}: no command is called {path}{did_you_mean(path, commands)}")


def _by_option(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key.replace("_", "-"): value for key, value in table.items()}


def _text(value: Any) -> Any:
    """Returns a TOML value as it would be typed: dates and times in ISO 8601. A boolean stays, for a flag."""
    if isinstance(value, bool | str):
        return value
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def settings_of(command: click.Command) -> Iterator[tuple[click.Option, list[str]]]:
    """Yields the options that can be set outside the command line, with their long names, without dashes."""
    for option in command.params:
        if isinstance(option, click.Option) and not option.hidden:
            names = [name[2:] for name in option.opts if name.startswith("--") and name[2:] not in COMMAND_LINE_ONLY]
            if names:
                yield option, names


def name_variables(command: click.Command, path: str) -> None:
    """Gives every option of the command its environment variables. An empty variable counts as not set.

    Args:
        command: changed in place. Its subcommands stay as they are.
        path: the command as typed after ``tidetable``, such as ``read plot``.
    """
    for option, names in settings_of(command):
        shared = [variable(name) for name in names if name not in OF_ONE_COMMAND]
        option.envvar = [*(variable(f"{path} {name}") for name in names), *shared]


def variable(name: str) -> str:
    """Returns the environment variable of an option, or of a command and an option."""
    return "TIDETABLE_" + name.replace("-", "_").replace(" ", "_").upper()
