"""``tidetable read alerts``: what fires now, and what fired."""

import time

import click

from pipeline.cli.options import AskedRange, asked_range_options
from pipeline.cli.output import Output, output_option, print_flat
from pipeline.cli.tables import number, print_table, prose, word
from pipeline.core.alerts.alert_answers import FIELDS, firing_now, history
from pipeline.core.notation.cell_values import rounded
from pipeline.reading.options import OpenTable, reading_options

_KINDS_OF_COLUMN = {"rule": prose, "value": number, "severity": prose}
_COLUMNS = [_KINDS_OF_COLUMN.get(field, word)(field.replace("_", " ")) for field in FIELDS]


@click.command()
@click.option("--rule", metavar="NAME", help="Only alerts of this rule.")
@click.option("--prefix", default="", help="Only sensors whose ids begin with this.")
@asked_range_options(
    "Print what fired and resolved since this time: a time such as -1d.",
    "The end of that time, exclusive. By default now.",
)
@reading_options
@output_option
def alerts(rule: str | None, prefix: str, asked: AskedRange, open_table: OpenTable, output: Output) -> None:
    """Print the alerts that fire now, or with --from what fired and resolved in a time range, oldest first.

    Reads the rows of alerts alone. A job with --alerts_topic writes them, by the rules that tidetable alerts stores.
    """
    from pipeline.cloud.reading.alerts import alert_records  # slow to import

    start_us, end_us = asked.us()
    if start_us is None and end_us is not None:
        raise click.UsageError("--to needs --from")
    with open_table() as table:
        records = alert_records(table, rule, lately=start_us is None)
        if start_us is None:
            found = list(firing_now(records, prefix))
        else:
            end_us = time.time_ns() // 1000 if end_us is None else end_us
            if end_us <= start_us:
                raise click.UsageError("--to is not after --from")
            found = history(records, start_us, end_us, prefix)
    if output != Output.TABLE:
        print_flat(found, FIELDS, output)
    elif found:
        shown = [each | {"value": "" if each["value"] is None else rounded(float(each["value"]))} for each in found]
        print_table(_COLUMNS, ([each[field] for field in FIELDS] for each in shown))
    if not found:
        click.echo("no alert fires" if start_us is None else "no alert fired or resolved in this time", err=True)
