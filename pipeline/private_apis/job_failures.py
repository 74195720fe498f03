"""Finds the cause of a job's failure in the text that Beam makes of a worker's exception.

Relies on, in ``apache-beam``:

- ``DoFnRunner._reraise_augmented`` in apache_beam/runners/common.py appends ``[while running 'STEP']`` to the message.
- ``SdkHarness._execute`` in apache_beam/runners/worker/sdk_worker.py turns the exception, or a KeyboardInterrupt, into
  the text of its traceback. The last lines contain its class, with the module, and its message.
- ``BundleManager.process_bundle`` and its callers in apache_beam/runners/portability/fn_api_runner/fn_runner.py raise a
  RuntimeError with that text.
- ``DataflowPipelineResult.wait_until_finish`` in apache_beam/runners/dataflow/dataflow_runner.py raises a
  DataflowRuntimeException: ``Dataflow pipeline failed. State: STATE, Error:``, then a line with the last error, or
  ``None``.
- The loggers of the modules in ``_LOGGERS`` log the traceback again, at different levels, and so does that of
  apache_beam/runners/direct/executor.py at each attempt, as text, and at last the exception itself.
"""

import logging
import re

from pipeline.cloud.connection.errors import ServerError

_LOGGERS = (
    "apache_beam.runners.worker.sdk_worker",
    "apache_beam.runners.common",
    "apache_beam.runners.portability.fn_api_runner.fn_runner",
)
_SERVER_PROBLEM = re.compile(rf"\b{ServerError.__name__}: (.*)")
_WHILE_RUNNING = re.compile(r"\s*\[while running .*?\]")


def silence_loggers() -> None:
    """Keeps Beam from logging failures, for callers that report them in one line."""
    for name in _LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)


def hide(failure: type[Exception]) -> None:
    """Keeps Beam from logging failures of one class, for a caller that reports them in one line."""

    def is_other(record: logging.LogRecord) -> bool:
        logged = [*(record.exc_info or ()), *(record.args if isinstance(record.args, tuple) else ())]
        return (
            not any(isinstance(each, failure) for each in logged)
            and f".{failure.__name__}: " not in record.getMessage()
        )

    for name in (*_LOGGERS, "apache_beam.runners.direct.executor"):
        logging.getLogger(name).addFilter(is_other)


def was_interrupted(failure: BaseException) -> bool:
    """Returns whether Ctrl-C ended the job, in whichever thread of this process."""
    return KeyboardInterrupt.__name__ in str(failure)


def cause_of(failure: BaseException) -> str:
    """Returns why the job failed, in one line: the message of a ServerError, or else the last line of the text."""
    text = _WHILE_RUNNING.sub("", str(failure))
    if isinstance(failure, ServerError):
        return text
    if messages := _SERVER_PROBLEM.findall(text):
        return messages[-1].strip()
    lines = [line for line in text.splitlines() if line.strip() not in ("", "None")]
    last = lines[-1].strip() if lines else type(failure).__name__
    return f"the job failed: {last[:500]}"
