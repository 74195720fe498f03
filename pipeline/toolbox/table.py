"""``tidetable table``: creates, describes and deletes a table."""

import sys
from typing import Any

import click
from rich import box
from rich.table import Table

from pipeline.cloud import tables
from pipeline.cloud.gc_rules import to_rule
from pipeline.cloud.names import TableName
from pipeline.core.rows import Families
from pipeline.core.schema.policies import EXAMPLE, Policy, PolicyError, format_policy, parse_policy
from pipeline.toolbox.console import out, print_json_line
from pipeline.toolbox.options import family_options, table_options


class FamilyPolicy(click.ParamType):
    """``FAMILY=POLICY``, read to the family's name and its policy."""

    name = "family=policy"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Policy]:
        family, equals, text = value.partition("=")
        if not equals:
            self.fail(f"{value!r} names no policy; it takes FAMILY=POLICY, as in raw=maxage=30d", param, ctx)
        try:
            policy = parse_policy(text)
            to_rule(policy)  # one too long for Bigtable is refused before anything is created
        except PolicyError as error:
            self.fail(f"family {family}: {error}", param, ctx)
        return family, policy


@click.group()
def table() -> None:
    """Create, describe or delete a table."""


@table.command()
@table_options
@family_options
@click.option(
    "--gc",
    "policies",
    type=FamilyPolicy(),
    multiple=True,
    help=f"A family's garbage collection, as cbt setgcpolicy takes it: raw=maxage=30d, or 'raw={EXAMPLE}'. Repeatable.",
)
@click.option(
    "--apply",
    "apply_changes",
    is_flag=True,
    help="Make a table that differs as wanted: adds families, and sets policies to what --gc or the default says. "
    "Drops no family.",
)
def create(table: TableName, families: Families, policies: tuple[tuple[str, Policy], ...], apply_changes: bool) -> None:
    """Create the table with its families, or tell how the one that is there differs.

    A table that differs is left as it is, with exit code 1, unless --apply is given.
    """
    wanted = _wanted_policies(families, policies)
    if tables.find(table) is None and tables.create(table, wanted):
        click.echo(f"table {table} created")
        for family, policy in wanted.items():
            click.echo(f"family {family}: policy is {format_policy(policy)}")
        return
    _compare(table, wanted, apply_changes=apply_changes)


@table.command()
@table_options
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON.")
def describe(table: TableName, as_json: bool) -> None:
    """Print the table's families and their garbage collection."""
    policies = {family: format_policy(policy) for family, policy in tables.describe(table).items()}
    if as_json:
        print_json_line({"table": str(table), "families": policies})
        return
    grid = Table("family", "policy", box=box.SIMPLE)
    for family, policy in policies.items():
        grid.add_row(family, policy)
    click.echo(f"table {table}")
    out.print(grid)


@table.command()
@table_options
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def delete(table: TableName, yes: bool) -> None:
    """Delete the table and everything in it. Asks first when somebody is at the terminal."""
    if sys.stdin.isatty() and not yes:
        click.confirm(f"Delete table {table} and everything in it?", abort=True, err=True)
    tables.delete(table)
    click.echo(f"table {table} deleted")


def _wanted_policies(families: Families, policies: tuple[tuple[str, Policy], ...]) -> dict[str, Policy]:
    wanted = tables.default_policies(families)
    for family, policy in policies:
        if family not in wanted:
            raise click.UsageError(f"--gc {family}=…: the table's families are {', '.join(wanted)}")
        wanted[family] = policy
    return wanted


def _compare(table: TableName, wanted: dict[str, Policy], *, apply_changes: bool) -> None:
    """Prints how the table differs; changes it where that is asked for, and else exits with 1."""
    differences = tables.differences(tables.describe(table), wanted)
    for difference in differences:
        click.echo(str(difference))
    changes = [difference for difference in differences if not difference.left_alone]
    if not changes:
        click.echo(f"table {table} has what is wanted: nothing to do")
    elif apply_changes:
        tables.apply(table, changes)
        click.echo(f"table {table} changed: it has what is wanted now")
    else:
        click.echo(f"table {table} is unchanged; --apply would make these changes")
        sys.exit(1)
