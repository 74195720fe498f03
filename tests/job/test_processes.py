"""Work is shared among processes, which end with the block, by an exception, and with the process that started them."""

import multiprocessing
import operator
import os
import signal
import subprocess
import sys
import time

import pytest

from pipeline.cloud.connection.errors import ServerError
from pipeline.job.processes import processes_of
from tests.support.waiting import eventually


def test_each_call_has_a_result() -> None:
    """Several processes take them, and are gone with the block."""
    with processes_of(2) as processes:
        assert sorted(processes.each(operator.add, ((number, 1) for number in range(20)))) == list(range(1, 21))
        assert len(set(processes.each(os.getppid, [()] * 8))) == 1
        assert len(multiprocessing.active_children()) == 2
    assert not multiprocessing.active_children()


def test_an_exception_of_a_call_ends_the_others() -> None:
    """It arrives as it was raised, and no long call is waited for."""
    began = time.monotonic()
    with pytest.raises(TypeError), processes_of(2) as processes:
        list(processes.each(time.sleep, [(300,), ("soon",)]))
    assert not multiprocessing.active_children()
    assert time.monotonic() - began < 200


def test_a_process_that_ends_is_a_problem_in_one_line() -> None:
    """Such as for lack of memory."""
    with (
        pytest.raises(ServerError, match=r"^one of this command's processes has ended, perhaps for lack of memory; "),
        processes_of(2) as processes,
    ):
        list(processes.each(os._exit, [(1,)]))


PROGRAM = """
import time
from pipeline.job.processes import processes_of

if __name__ == "__main__":
    with processes_of(2) as processes:
        list(processes.each(time.sleep, [(0.01,)] * 4))
        print("ready", flush=True)
        list(processes.each(time.sleep, [(300,)] * 2))
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_they_end_with_the_first_process(how: signal.Signals, tmp_path) -> None:
    """However it ends; after Ctrl-C, which all of a terminal's processes get, there is one traceback."""
    (tmp_path / "program.py").write_text(PROGRAM)
    first = subprocess.Popen(
        [sys.executable, tmp_path / "program.py"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert first.stdout is not None
    assert first.stdout.readline() == "ready\n"
    os.killpg(first.pid, how) if how == signal.SIGINT else first.kill()
    _, printed = first.communicate(timeout=60)
    assert printed.count("Traceback") == (how == signal.SIGINT)

    def is_empty() -> bool:
        try:
            os.killpg(first.pid, 0)
        except ProcessLookupError:
            return True
        return False

    eventually(is_empty)
