"""Runs the tutorial's commands as they are on the page, in two terminals, and compares what they print."""

import json
import re
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.preloaded import link_environment
from tests.support.waiting import eventually

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/tutorial.md").read_text().replace("source .venv/bin/activate\n", "")  # as link_environment does
PNG = b"\x89PNG\r\n\x1a\n"


class Block(NamedTuple):
    """Commands of the page."""

    commands: str
    printed: str  # as the page quotes it; empty if it does not
    code: int  # the exit code that the text before them names


def blocks() -> Iterator[Block]:
    end = 0
    for block in re.finditer(r"^```sh\n(.*?)^```$(?:\n\n```\n(.*?)^```$)?", PAGE, re.DOTALL | re.MULTILINE):
        code = re.search(r"exit code (\d)", PAGE[end : block.start()])
        yield Block(block[1], block[2] or "", int(code[1]) if code else 0)
        end = block.end()


def without_numbers(text: str) -> str:
    """Returns what is the same at any time: without digits, and without the widths that depend on them."""
    whole_seconds = re.sub(r"\.\d+Z", "Z", text)  # a time has no fraction if that is zero
    lines = re.sub(r"─+", "─", re.sub(r"\d+", "0", whole_seconds)).splitlines()
    return "\n".join(" ".join(line.split()) for line in lines if line.strip())


@pytest.fixture
def environment(tmp_path) -> dict[str, str]:
    """Of a terminal without any setting, with the checkout's environment activated."""
    activated = link_environment(tmp_path)
    ours = {name: value for name, value in activated.items() if not re.search("^TIDETABLE_|_EMULATOR_HOST$", name)}
    return ours | {"PYTHONPATH": str(ROOT), "COLUMNS": "120"}


@pytest.mark.timeout(500)  # two dozen processes, some tried again until the job has written
def test_the_first_ten_minutes(tmp_path, environment):
    """The demo finds no difference and draws a chart, and the commands that it suggests work. Each block of the page
    ends with the exit code that the page names, and prints what it quotes, within a minute; the chart is drawn; Ctrl-C
    in the first terminal ends the job and the emulators."""
    start, settings, *others = blocks()
    assert start.commands.startswith("make setup\n")  # already run in this environment
    first = subprocess.Popen(
        shlex.split(start.commands.removeprefix("make setup\n")),
        cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        printed = list(takewhile(lambda line: not line.startswith("Ctrl-C here stops"), first.stdout))
        check_demo("".join(printed), tmp_path)
        exports = "".join(line for line in printed if line.startswith("export "))
        check_suggestions(exports, [line for line in printed if line.startswith("tidetable ")], tmp_path, environment)
        for block in others:
            run(exports + settings.commands, block, tmp_path, environment)
        first.send_signal(signal.SIGINT)
        assert first.wait(150) == 0, first.stdout.read()
    finally:
        first.kill()
    assert (tmp_path / "chart.png").read_bytes().startswith(PNG)
    for host, port in re.findall(r"_HOST=(\S+):(\d+)", exports):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)))


def check_demo(printed: str, checkout: Path) -> None:
    """The demo prints what the README quotes, and then how to go on."""
    quoted = re.search(r"^```\n(raw rows .*?)^```$", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    assert printed.startswith(("using ", "no Google emulator found: using "))
    assert set(demo_lines(quoted[1])) <= {*demo_lines(printed), "…"}
    assert "_EMULATOR_HOST=" in printed
    assert (checkout / "demo.png").stat().st_size > 10_000


def demo_lines(printed: str) -> list[str]:
    """Returns the lines that are the same at any time: without the steps begun, and whichever sensor is drawn."""
    lines = (line for line in printed.splitlines() if not line.endswith("…"))
    return without_numbers(re.sub(r"\w+-\d{4}'s", "sensor's", "\n".join(lines))).splitlines()


def check_suggestions(exports: str, commands: list[str], checkout: Path, environment: dict[str, str]) -> None:
    """All of them work where the demo's exports are pasted."""
    tried = {
        command: subprocess.run(
            ["sh", "-c", exports + command],
            cwd=checkout, env=environment, capture_output=True, text=True, timeout=60, check=False,
        )
        for command in commands
    }  # fmt: skip
    assert {command: done.stderr for command, done in tried.items() if done.returncode} == {}
    answers = {command.split()[1]: done.stdout for command, done in tried.items()}
    assert answers.keys() == {"read", "results", "simulate", "dead-letters", "repair"}
    assert {json.loads(line)["kind"] for line in answers["results"].splitlines()} <= {"early", "on_time", "late"}
    assert len(answers["results"].splitlines()) == 5
    assert "UNPARSEABLE" in answers["dead-letters"]
    assert re.match(r"[1-9]\d* windows checked, 0 wrong", answers["repair"])


def run(settings: str, block: Block, checkout: Path, environment: dict[str, str]) -> None:
    """Runs commands until they do what the page says: the job takes seconds to write what was published."""
    expected = without_numbers(block.printed)

    def tried() -> bool:
        nonlocal done
        done = subprocess.run(
            ["bash", "-ec", settings + block.commands],
            cwd=checkout, env=environment, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        if done.returncode == block.code and expected in without_numbers(done.stdout):
            return True
        time.sleep(1)  # a try takes longer than what it waits for
        return False

    done: subprocess.CompletedProcess[str]
    try:
        eventually(tried)
    except AssertionError as late:
        raise AssertionError(f"{block.commands}\n{done.returncode}\n{done.stdout}\n{done.stderr}") from late
