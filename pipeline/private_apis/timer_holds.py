"""Sets timers of the clock that do not hold the output watermark back.

With a timer of the clock, Beam sends the timestamp of the element or timer that set it, and Dataflow holds the step's
output watermark there until the timer fires: five minutes for an early pane, twenty for windows that rest. What the
timer puts out needs no such hold, since its timestamp is the time at which the timer fires. So we send that time, as
Beam does for timers of the watermark. Java has a method for it, and Python has none (beam#20705).

Relies on, in ``apache-beam``:

- ``OutputTimer`` in apache_beam/runners/worker/bundle_processor.py sends its ``_input_timestamp`` as the hold of a
  timer of the clock, which :func:`check` tries. A DoFn gets a new one for each call. The DirectRunner's timers are of
  another class, and hold nothing. Its ``set`` encodes the timer with ``_TimerCoder`` in apache_beam/coders/coders.py.
- apache_beam/runners/worker/sdk_worker_main.py, the main program of workers, takes the address of its service from the
  environment. Without it, the runner may be the FnApiRunner in this process, which takes the hold for the firing time.
"""

import os

from apache_beam.coders import VarIntCoder
from apache_beam.coders.coders import GlobalWindowCoder, _TimerCoder
from apache_beam.runners.worker.bundle_processor import OutputTimer
from apache_beam.runners.worker.data_plane import ClosableOutputStream
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import RuntimeTimer
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import PANE_INFO_UNKNOWN

from pipeline.private_apis.replace import replace

OF_WORKERS = "CONTROL_API_SERVICE_DESCRIPTOR"
"""A variable of the environment that every worker has."""


def set_clock_timer(timer: RuntimeTimer, at: Timestamp) -> None:
    """Sets a timer of the clock. Until it fires, the output watermark may get as far as the time at which it fires."""
    if isinstance(timer, OutputTimer) and OF_WORKERS in os.environ:
        replace(timer, "_input_timestamp", at)
    timer.set(at)


def watermark_is_clock(timer: RuntimeTimer) -> bool:
    """Returns whether a timer is one of the DirectRunner, whose watermark is the clock, whatever waits in Pub/Sub."""
    return not isinstance(timer, OutputTimer)


def clock_is_set_forward(timer: RuntimeTimer, at: Timestamp, now_us: int, every_us: int) -> bool:
    """Returns whether a timer fires early because a stop has set the DirectRunner's clock forward.

    A timer that sets itself again would fire again at once, for ever.

    Args:
        timer: the timer.
        at: the time for which it was set.
        now_us: the current time.
        every_us: the time after which the timer sets itself.
    """
    return not isinstance(timer, OutputTimer) and at.micros > now_us + every_us // 2


def check() -> None:
    """Sets a timer of the clock, and looks at its hold. Call it in the ``setup`` of a DoFn with timers.

    Raises:
        RuntimeError: this is a worker, and the installed release of Beam would hold the watermark all the same.
    """
    coder, stream = _TimerCoder(VarIntCoder(), GlobalWindowCoder()).get_impl(), ClosableOutputStream()
    arguments = 1, GlobalWindow(), Timestamp(0), PANE_INFO_UNKNOWN, TimeDomain.REAL_TIME, "clock", coder, stream
    set_clock_timer(OutputTimer(*arguments), Timestamp(1))
    (sent,) = coder.decode_all(stream.get())
    if OF_WORKERS in os.environ and sent.hold_timestamp != Timestamp(1):
        raise RuntimeError(
            "the installed release of apache-beam holds the watermark until a timer of the clock fires, which delays "
            "panes by an hour: install the release that requirements.txt pins, on workers too"
        )
