"""The environment variables of options: ``TIDETABLE_PROJECT`` for ``--project``, in every command that has it."""

from collections.abc import Iterator

import click

# Consent, and the choice whether to write, belong to one command line: a setting made long ago and elsewhere must not
# delete a table.
COMMAND_LINE_ONLY = frozenset({"accept-expired", "ack", "apply", "dry-run", "force", "help", "yes"})

# These differ between commands: a setting has to name the command.
OF_ONE_COMMAND = frozenset({"dead-letters", "output", "schema", "sensors", "tier", "window"})

# The long names of all options that a profile can set, to tell a mistyped key from one for another command. click could
# tell them only after an import of every command, which takes seconds; a test compares the list with the commands.
OPTION_NAMES = frozenset(
    """
    alerts-topic all allowed-lateness app-profile at-most attribute band batch behind-proxy bigtable-instance
    bigtable-project bigtable-table bigtable-writer by chart dead-letter-topic dead-letters
    default-message-type disk duration early-firing embedded end every fill fresh from gc host id-attribute
    input-subscription input-topic instance interval job-name json keep key late late-firing latest-family
    launch-checks layout limit listed live log-format malformed max max-future max-num-workers max-points
    max-record-bytes message message-decoder message-descriptors message-mapping meta-family metadata metadata-fields
    metric metrics newest-every output port prefix prices project publish-time rate raw-family reason region report
    results results-encoding results-subscription results-topic rollup rollup-groups rollups rule runner sample
    schema sdk-container-image seed sensor sensor-column sensors serve service-account-email silent-for since
    statistics stats-family status-file subnetwork subscription table temp-location tier time-column time-unit time-zone
    timeout timestamp-attribute to token-file toml top topic unit unknown-fields until values wait window
    worker-machine-type y-max y-min
    """.split()  # noqa: SIM905 (a list would take a hundred lines)
)


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
