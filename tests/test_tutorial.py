"""Runs the tutorial's commands line by line, as they are on the page."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PNG = b"\x89PNG\r\n\x1a\n"


def test_from_a_csv_to_a_chart(tmp_path):
    """A shell runs the page's commands: the chart is drawn, and the audit finds nothing wrong."""
    page = (ROOT / "docs/tutorial.md").read_text()
    commands = "".join(re.findall(r"^```sh\n(.*?)^```$", page, re.DOTALL | re.MULTILINE))
    assert commands.startswith("make setup\n")  # already run in this environment
    (tmp_path / ".venv").symlink_to(sys.prefix)
    environment = {name: value for name, value in os.environ.items() if not name.endswith("_EMULATOR_HOST")}
    shell = subprocess.Popen(
        ["bash"],
        cwd=tmp_path,
        # Any failing command ends the shell, and fails the test.
        env=environment | {"PYTHONPATH": str(ROOT), "SHELLOPTS": "errexit"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = shell.communicate(commands.removeprefix("make setup\n"), timeout=150)
    except subprocess.TimeoutExpired:
        os.killpg(shell.pid, signal.SIGKILL)
        output, _ = shell.communicate()
    assert shell.returncode == 0, output
    assert (tmp_path / "chart.png").read_bytes().startswith(PNG)
    assert re.search(r"^raw_rows +576$", output, re.MULTILINE)
