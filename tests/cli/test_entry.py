"""The entries as processes: what they do at Ctrl-C, and about output that can't be written."""

import os
import signal
import subprocess
import sys

import pytest

TOOLBOX = "from pipeline.cli.extras import main; main()"
JOB = "import runpy; runpy.run_module('pipeline', run_name='__main__', alter_sys=True)"
PRINT = "from pipeline.cli.entry import run; from pipeline.cli.console import out, print_json_line; run(lambda: {})"


def start(script: str, *arguments: str, output: str | int = subprocess.PIPE, **environment: str):
    """Runs Python code to its end, with standard output to a path or a pipe."""
    handle = os.open(output, os.O_WRONLY) if isinstance(output, str) else None
    try:
        return subprocess.run(
            [sys.executable, "-c", script, *arguments],
            stdout=output if handle is None else handle,
            stderr=subprocess.PIPE,
            env=os.environ | environment,
            timeout=60,
            check=False,
        )
    finally:
        if handle is not None:
            os.close(handle)


def interrupting(module: str, script: str) -> str:
    """Returns the script with Ctrl-C at the moment when it imports the module."""
    return f"""
import os, signal, sys

class Interrupts:
    def find_spec(self, name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
{script}
"""


@pytest.mark.parametrize("module", ["pipeline.cli.entry", "click", "rich", "grpc", "pipeline.cloud.reading.reader"])
def test_ctrl_c_during_the_imports_of_a_command(module):
    """Ctrl-C ends the command at once with 130, and prints nothing; so it does while the command imports more."""
    ran = start(
        interrupting(module, TOOLBOX), "read", "latest-events", "s", "--project=my-project", "--instance=i", "--table=t"
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, b"", b"")


@pytest.mark.parametrize(("process", "code"), [("1", 128 + signal.SIGTERM), ("2", -signal.SIGTERM)])
def test_sigterm(process, code):
    """SIGTERM ends a program that does not handle it, also as the first process of a container."""
    ran = start(
        f"import os, signal; os.getpid = lambda: {process}; from pipeline.cli.entry import run; "
        "run(lambda: signal.raise_signal(signal.SIGTERM))"
    )
    assert ran.returncode == code


@pytest.mark.parametrize("module", ["pipeline.cli.entry", "pipeline.job.launch", "apache_beam"])
def test_ctrl_c_during_the_imports_of_the_job(module):
    """The job's first seconds are no different."""
    ran = start(interrupting(module, JOB))
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, b"", b"")


def test_ctrl_c_in_a_command():
    """Once a command runs, Ctrl-C is an exception, so that the command can clean up; the code is the same."""
    script = """
import os, signal
from pipeline.cli import root

@root.click.command()
def cleaning():
    try:
        os.kill(os.getpid(), signal.SIGINT)
    finally:
        root.click.echo("cleaned up")

root.main.add_command(cleaning)
root.main.get_command = lambda *_: cleaning
"""
    ran = start(script + TOOLBOX, "cleaning")
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, b"cleaned up\n", b"")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk(unbuffered):
    """If standard output can't be written, the command says so in one line, and fails."""
    ran = start(TOOLBOX, "--help", output="/dev/full", PYTHONUNBUFFERED=unbuffered)
    assert (ran.returncode, ran.stderr) == (1, b"tidetable: standard output: No space left on device\n")


def test_a_full_disk_that_is_noticed_last():
    """What is written when everything else is done is not lost in silence either."""
    ran = start(PRINT.format("print_json_line({'n': 1})"), output="/dev/full")
    assert (ran.returncode, ran.stderr) == (1, b"tidetable: standard output: No space left on device\n")


def test_an_error_that_is_no_full_disk():
    """Any other error of the system is a bug, and not hidden."""
    ran = start(PRINT.format("open('/nonexistent')"))
    assert ran.returncode == 1
    assert b"Traceback" in ran.stderr


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_has_gone(unbuffered):
    """A closed pipe ends the command without a word."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ran = start(TOOLBOX, "--help", output=writing, PYTHONUNBUFFERED=unbuffered)
    finally:
        os.close(writing)
    assert (ran.returncode, ran.stderr) == (1, b"")


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_an_encoding_that_lacks_characters(encoding):
    """Text is escaped in Python's syntax, and JSON in its own."""
    script = PRINT.format(r"(out.print('→ K\xe4ller'), print_json_line({'text': '→ 𝄞'})) and None")
    ran = start(script, PYTHONIOENCODING=encoding)
    text, line = ran.stdout.decode(encoding).splitlines()
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert text == {"ascii": r"\u2192 K\xe4ller", "latin-1": r"\u2192 Käller"}[encoding]
    assert line == r'{"text": "\u2192 \ud834\udd1e"}'


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_file_of_csv_in_another_encoding(encoding):
    """CSV is UTF-8 whatever the terminal's encoding: escapes would be other values to whoever reads the file."""
    printing = "(lambda: print_flat([{'a': 'K\xe4ller →'}], ['a'], Output.CSV))"
    script = f"from pipeline.cli.entry import run; from pipeline.cli.output import Output, print_flat; run{printing}"
    ran = start(script, PYTHONIOENCODING=encoding)
    assert (ran.returncode, ran.stdout.decode().splitlines()) == (0, ["a", "K\xe4ller →"])


def test_standard_output_that_is_closed():
    """Nothing is printed, and nothing fails."""
    closed = f"import os, sys; os.close(1); sys.stdout = None\n{TOOLBOX}"
    assert start(closed, "--version").returncode == 0
