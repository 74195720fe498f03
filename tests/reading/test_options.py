import time
from datetime import UTC, datetime, timedelta

import click
import pytest
from click.testing import CliRunner

from pipeline.core.notation.times import to_datetime
from pipeline.reading.options import range_options

NOON = datetime(2026, 2, 17, 12, tzinfo=UTC)


@click.command()
@range_options
def command(start_us: int, end_us: int) -> None:
    click.echo((to_datetime(start_us) - NOON) / timedelta(hours=1), nl=False)
    click.echo(f" {(to_datetime(end_us) - NOON) / timedelta(hours=1)}", nl=False)


@pytest.mark.parametrize(
    ("options", "hours"),
    [
        ([], "-24.0 0.0"),
        (["--from", "-2h"], "-2.0 0.0"),
        (["--from=-2h", "--to=-1h"], "-2.0 -1.0"),
        (["--to", "today"], "-36.0 -12.0"),
        (["--from", "yesterday", "--to", "2026-02-17T11"], "-36.0 -1.0"),
    ],
)
def test_range(monkeypatch, options, hours):
    """The last day by default; relative times, separated by a space or an equals sign."""
    monkeypatch.setattr(time, "time_ns", lambda: int(NOON.timestamp()) * 10**9)
    ran = CliRunner().invoke(command, options)
    assert (ran.exit_code, ran.stdout) == (0, hours), ran.stderr
