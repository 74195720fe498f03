import io
import json
import logging
import socket
import subprocess
import sys

import pytest

from pipeline.job.saying import RenewedLine, fitting, renewed_line, say, tell_systemd

LOUD = """
import logging, threading, warnings
from pipeline.job.saying import say, use_json
use_json()
say("begun", rows=3)
logging.getLogger("apache_beam").warning("careful: %s", "\\x1b[31m\\n")
warnings.warn("old")
thread = threading.Thread(target=lambda: 1 / 0)
thread.start()
thread.join()
raise ValueError("at the end")
"""


def test_everything_is_json():
    """What is said, logged, warned of or raised, also in a thread, is one line of JSON each."""
    ran = subprocess.run([sys.executable, "-c", LOUD], capture_output=True, text=True, check=False)
    lines = [json.loads(line) for line in ran.stderr.splitlines()]
    assert [line["severity"] for line in lines] == ["INFO", "WARNING", "WARNING", "CRITICAL", "CRITICAL"]
    assert (lines[0]["message"], lines[0]["rows"]) == ("begun", 3)
    assert lines[1]["message"] == "careful: \x1b[31m\n"
    assert "ZeroDivisionError" in lines[3]["message"]
    assert lines[4]["message"].endswith("ValueError: at the end")
    assert ran.returncode == 1


@pytest.mark.parametrize(
    ("width", "shown"), [(14, "one, two, six"), (13, "one, two"), (9, "one, two"), (8, "one"), (3, "on"), (0, "")]
)
def test_a_line_never_wraps(width, shown):
    """A line is shorter than the terminal is wide: parts that do not fit are left out."""
    assert fitting(["one", "two", "six"], width) == shown


def test_others_write_in_place_of_the_line():
    """Whatever is written takes the place of the renewed line, and a line that others began is not overwritten."""
    terminal = io.StringIO()
    line = RenewedLine(terminal)
    line.renew(["first"])
    print("half", end="", file=line)
    line.renew(["never"])
    print(" whole", file=line)
    line.renew(["second"])
    assert terminal.getvalue() == "\rfirst\x1b[K\r\x1b[Khalf whole\n\rsecond\x1b[K"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_what_is_logged_takes_the_lines_place(monkeypatch):
    """Within the block, a handler that was made before it writes in place of the line; at the end, the line is gone."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    handler = logging.StreamHandler()
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    with renewed_line() as line:
        line.renew(["first"])
        logging.getLogger("apache_beam").warning("careful")
        line.renew(["second"])
    assert (terminal.getvalue(), handler.stream) == ("\rfirst\x1b[K\r\x1b[Kcareful\n\rsecond\x1b[K\r\x1b[K", terminal)


class Gone(Terminal):
    def write(self, text):
        raise BrokenPipeError


def test_nobody_reads(monkeypatch):
    """A job goes on if its terminal or its log is gone."""
    monkeypatch.setattr(sys, "stderr", Gone())
    monkeypatch.setenv("TERM", "xterm")
    with renewed_line() as line:
        line.renew(["first"])
        say("hello")


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_is_told(tmp_path, monkeypatch, abstract):
    """A service tells systemd its state, by a socket of either kind; any other process tells nobody."""
    name = f"@{tmp_path}" if abstract else str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(name.replace("@", "\0"))
        systemd.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        tell_systemd(STATUS="5 events/s", WATCHDOG="1")
        assert systemd.recv(1000) == b"STATUS=5 events/s\nWATCHDOG=1"
    tell_systemd(STATUS="nobody listens")
    monkeypatch.delenv("NOTIFY_SOCKET")
    tell_systemd(STATUS="no service")
