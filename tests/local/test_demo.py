import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from pipeline.cli.root import main
from pipeline.local import demo
from pipeline.local.proof import Expectation


def test_the_demo_verifies_its_table(tmp_path):
    """The demo runs the whole job, finds no difference, and prints a summary and a chart."""
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_EMULATOR_HOST")}
    finished = subprocess.run(
        [Path(sys.executable).with_name("tidetable"), "demo", "--sensors=3", f"--chart={tmp_path / 'band.png'}"],
        capture_output=True,
        text=True,
        timeout=150,
        env=environment,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    for expected in (
        "published",
        "raw rows",
        "aggregate rows",
        "dead letters",
        "UNPARSEABLE",
        "temperature by the hour",
    ):
        assert expected in finished.stdout
    assert "Every raw row and every aggregate equals an independent computation over what" in finished.stdout
    assert (tmp_path / "band.png").stat().st_size > 10_000


def test_the_demo_fails_on_a_difference(pubsub, bigtable, tmp_path, monkeypatch):
    """A difference between the table and the published events is printed, and the demo fails."""
    remember = Expectation.add
    forgotten = []

    def forget_one(expectation, event):
        if forgotten:
            remember(expectation, event)
        else:
            forgotten.append(event)

    monkeypatch.setattr(Expectation, "add", forget_one)
    result = CliRunner().invoke(main, ["demo", "--sensors=1", f"--chart={tmp_path / 'band.png'}"])
    assert result.exit_code == 1
    assert "not published" in result.output
    assert "differences between what was published and the table" in result.output


def test_dead_letters_are_compared_too():
    """A missing or extra dead letter, or one with another reason, is a difference."""
    published = demo._Published(dead_letters=Counter(NO_READINGS=2, UNPARSEABLE=1))
    assert list(demo._dead_letter_differences(published, Counter(NO_READINGS=2, UNPARSEABLE=1))) == []
    assert len(list(demo._dead_letter_differences(published, Counter(NO_READINGS=2)))) == 1
    assert len(list(demo._dead_letter_differences(published, Counter(NO_READINGS=3, INVALID_SENSOR_ID=1)))) == 3


@pytest.mark.parametrize(
    "arguments", [["--sensors=0"], ["--seed=x"], ["--chart=/nonexistent/band.png"], ["--chart=band.xyz"]]
)
def test_usage(arguments):
    """Wrong usage starts nothing."""
    assert CliRunner().invoke(main, ["demo", *arguments]).exit_code == 2
