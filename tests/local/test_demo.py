import os
import re
import signal
import socket
import subprocess
import sys
from collections import Counter
from itertools import takewhile
from pathlib import Path

import pytest
from click.testing import CliRunner

from pipeline.cli.root import main
from pipeline.local import demo
from pipeline.local.proof import Expectation


def test_the_demo_verifies_its_table_and_keeps_everything_running(tmp_path):
    """The demo finds no difference, and draws a chart. With --keep, a terminal without any setting can then paste its
    suggestions, and all of them work; Ctrl-C ends the job and the emulators."""
    own = Path(sys.executable).parent
    environment = {
        name: value for name, value in os.environ.items() if not re.search("^TIDETABLE_|_EMULATOR_HOST$", name)
    }
    environment["PATH"] = os.pathsep.join(
        each for each in environment["PATH"].split(os.pathsep) if Path(each).resolve() != own.resolve()
    )
    demo_process = subprocess.Popen(
        [own / "tidetable", "demo", "--keep", "--sensors=3", f"--chart={tmp_path / 'band.png'}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )
    try:
        printed = list(takewhile(lambda line: not line.startswith("Ctrl-C here stops"), demo_process.stdout))
        exports = "".join(line for line in printed if line.startswith("export "))
        commands = [line for line in printed if line.startswith("tidetable ")]
        tried = {command: _pasted(exports + command, environment) for command in commands}
        demo_process.send_signal(signal.SIGINT)
        assert demo_process.wait(60) == 0, demo_process.stdout.read()
    finally:
        demo_process.kill()
    for expected in (
        "published",
        "raw rows",
        "aggregate rows",
        "dead letters",
        "UNPARSEABLE",
        "temperature by the hour",
        "Every raw row and every aggregate equals an independent computation over what",
    ):
        assert expected in "".join(printed)
    assert (tmp_path / "band.png").stat().st_size > 10_000
    assert {command: done.stderr for command, done in tried.items() if done.returncode} == {}
    answers = {command.split()[1]: done.stdout for command, done in tried.items()}
    assert answers.keys() == {"read", "simulate", "dead-letters", "repair"}
    assert "UNPARSEABLE" in answers["dead-letters"]
    assert re.match(r"[1-9]\d* windows checked, 0 wrong", answers["repair"])
    for host, port in re.findall(r"_HOST=(\S+):(\d+)", exports):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)))


def _pasted(lines: str, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh", "-c", lines], env=environment, capture_output=True, text=True, timeout=60, check=False)


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
    "arguments",
    [["--sensors=0"], ["--sensors=99999999999"], ["--seed=x"], ["--chart=/nonexistent/band.png"], ["--chart=band.xyz"]],
)
def test_usage(arguments):
    """Wrong usage starts nothing."""
    assert CliRunner().invoke(main, ["demo", *arguments]).exit_code == 2
