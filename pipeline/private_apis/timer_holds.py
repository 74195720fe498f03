"""Sets timers of the clock that do not hold the output watermark back.

With a timer of the clock, Beam sends the timestamp of the element or timer that set it, and Dataflow holds the step's
output watermark there until the timer fires: five minutes for an early pane, twenty for windows that rest. What the
timer puts out needs no such hold, since its timestamp is the time at which the timer fires. So we send that time, as
Beam does for timers of the watermark. Java has a method for it, and Python has none (beam#20705).

Relies on, in ``apache-beam``:

- ``OutputTimer`` in apache_beam/runners/worker/bundle_processor.py sends its ``_input_timestamp`` as the hold of a
  timer of the clock. A DoFn gets a new one for each call. The DirectRunner's timers are of another class, and hold
  nothing.
- apache_beam/runners/worker/sdk_worker_main.py, the main program of workers, takes the address of its service from the
  environment. Without it, the runner may be the FnApiRunner in this process, which takes the hold for the firing time.
"""

import os

from apache_beam.runners.worker.bundle_processor import OutputTimer
from apache_beam.transforms.userstate import RuntimeTimer
from apache_beam.utils.timestamp import Timestamp

OF_WORKERS = "CONTROL_API_SERVICE_DESCRIPTOR"
"""A variable of the environment that every worker has."""


def set_clock_timer(timer: RuntimeTimer, at: Timestamp) -> None:
    """Sets a timer of the clock. Until it fires, the output watermark may get as far as the time at which it fires."""
    if isinstance(timer, OutputTimer) and OF_WORKERS in os.environ:
        timer._input_timestamp = at
    timer.set(at)
