"""``tidetable run``: starts the streaming job. Its options are the job's flags as declared."""

from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

import click

from pipeline.job.flags import TidetableOptions
from pipeline.job.launch import main
from pipeline.job.saying import use_json
from pipeline.private_apis.beam_flags import Flag, declared_flags

# The short names that other commands have for the table: so one profile serves them and the job.
_ALSO = {"--bigtable_instance": "--instance", "--bigtable_table": "--table"}

# Beam's flags that most launches set: the help lists them, and a variable or a profile can set them.
_OF_BEAM = {
    "--runner": "DirectRunner, which runs the job here, or DataflowRunner.",
    "--project": "Project of the Dataflow job, and of the Bigtable instance.",
    "--region": "Region of the Dataflow job.",
    "--temp_location": "The folder of temporary files, gs://BUCKET/FOLDER.",
    "--job_name": "Name of the Dataflow job.",
    "--service_account_email": "Identity of the workers.",
    "--sdk_container_image": "Image of the workers.",
    "--subnetwork": "Subnetwork of the workers: regions/REGION/subnetworks/SUBNETWORK.",
    "--worker_machine_type": "Machine type of the workers.",
    "--max_num_workers": "Most workers at a time.",
}


class _FlagOption(click.Option):
    """An option whose value is passed on to the job as it is."""

    def __init__(self, flag: Flag) -> None:
        self.flag = flag.name
        self.group = flag.group
        super().__init__(
            [_hyphened(self.flag), *([_ALSO[self.flag]] if self.flag in _ALSO else [])],
            multiple=flag.repeatable,
            default=flag.default,
            show_default=True,
            metavar=flag.metavar,
            help=flag.help,
        )


class _HereOption(click.Option):
    """An option of this command alone: it is not passed on to the job."""

    group = "On one machine"


class _RunCommand(click.Command):
    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, options in groupby(self.get_params(ctx), key=lambda option: getattr(option, "group", "Other")):
            with formatter.section(title):
                formatter.write_dl([record for option in options if (record := option.get_help_record(ctx))])


def _run(log_format: str, status_file: Path | None, **values: Any) -> None:
    if log_format == "json":
        use_json()
    ctx = click.get_current_context()
    argv = []
    for option in ctx.command.params:
        if isinstance(option, _FlagOption) and option.name:
            value = values[option.name]
            each = value if option.multiple else [value]
            argv += [f"{option.flag}={one}" for one in each if one is not None]
    ctx.exit(main([*argv, *ctx.args], status_file))


def _options(flags: Iterable[Flag]) -> list[click.Option]:
    return [_FlagOption(flag) for flag in flags]


def _hyphened(text: str) -> str:
    return text.replace("_", "-")


_HERE = [
    _HereOption(
        ["--log-format"],
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="In json, each message is a line of JSON for Cloud Logging, with the numbers of the job's status.",
    ),
    _HereOption(
        ["--status-file"],
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Write the job's status to this file while the job makes progress: its age is the health of the job.",
    ),
]

_BEAM_FLAGS = [Flag(name, "Apache Beam", text) for name, text in _OF_BEAM.items()]

run = _RunCommand(
    "run",
    params=[*_options(declared_flags(TidetableOptions)), *_HERE, *_options(_BEAM_FLAGS)],
    callback=_run,
    # Options may also be spelled with underscores, as the flags of python -m pipeline are.
    context_settings={
        "ignore_unknown_options": True,
        "allow_extra_args": True,
        "token_normalize_func": _hyphened,
    },
    help="""Run the streaming job: here, until Ctrl-C, or on Dataflow with --runner DataflowRunner.

    Reads events from Pub/Sub, and writes raw rows and aggregates to the table. Checks all options and every resource
    before it reads a message.

    Shows the job's status: on a terminal by a line that is renewed, elsewhere by a line every minute.

    The options are the flags of `python -m pipeline`, with hyphens, and options for one machine. All
    other flags of Apache Beam pass through; `python -m pipeline --help` lists them.

    \b
    Exit code:
      0    the job ended as requested, or was submitted to Dataflow
      1    a table, a topic or a server lacks something, or the job failed
      2    wrong usage
      130  Ctrl-C while the job was starting
    """,
)
