"""The demo finds differences. The test of the tutorial shows the rest: it begins with the demo."""

from collections import Counter

import pytest
from click.testing import CliRunner

from pipeline.cli.root import main
from pipeline.local import demo
from pipeline.local.proof import Expectation


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
    result = CliRunner().invoke(main, ["demo", "--sensor-count=1", f"--chart={tmp_path / 'band.png'}"])
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
    "arguments",
    [
        ["--sensor-count=0"],
        ["--sensor-count=99999999999"],
        ["--seed=x"],
        ["--chart=/nonexistent/band.png"],
        ["--chart=band.xyz"],
    ],
)
def test_usage(arguments):
    """Wrong usage starts nothing."""
    assert CliRunner().invoke(main, ["demo", *arguments]).exit_code == 2
