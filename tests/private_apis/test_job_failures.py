import pytest

from pipeline.cloud.connection.errors import ServerError
from pipeline.private_apis.job_failures import cause_of, was_interrupted

TRACEBACK = "Traceback (most recent call last):\n  File x, line 1\n"


@pytest.mark.parametrize(
    ("failure", "cause"),
    [
        (ServerError("table t does not exist [while running 'a/b']"), "table t does not exist"),
        (
            RuntimeError(
                f"{TRACEBACK}pipeline.cloud.connection.errors.ServerError: no table [while running 'a']\n\nNone\n"
            ),
            "no table",
        ),
        (RuntimeError(f"{TRACEBACK}ValueError: bad [while running 'a']\n"), "the job failed: ValueError: bad"),
        (RuntimeError("State: FAILED, Error:\nNone"), "the job failed: State: FAILED, Error:"),
        (RuntimeError(), "the job failed: RuntimeError"),
    ],
)
def test_cause(failure, cause):
    """The cause is one line: our own message if there is one, else the last line, without the step."""
    assert cause_of(failure) == cause


def test_interrupted():
    """A worker of this process sends Ctrl-C as a traceback."""
    assert was_interrupted(RuntimeError(f"{TRACEBACK}KeyboardInterrupt\n"))
    assert not was_interrupted(RuntimeError(f"{TRACEBACK}ValueError: x\n"))
