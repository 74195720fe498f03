"""Runs a step of the model of tables in the SDK's worker code, one key a bundle; see :mod:`tests.model.beam_steps`."""

from copy import copy
from random import Random

from apache_beam.coders import BytesCoder
from apache_beam.portability.api import beam_fn_api_pb2
from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.window import GlobalWindow, TimestampedValue
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import WindowedValue

from tests.engine.fragment import Fragment, clock, set_clock
from tests.engine.service import LOST, REFUSED, Stage
from tests.engine.state_service import StateService
from tests.engine.worker import Worker

_BYTES = BytesCoder().get_impl()


class SdkStep(Stage):
    """A DoFn with its state, called as :class:`tests.model.beam_steps.Step` is.

    Attributes:
        fn: the DoFn; another one may take over the state.
    """

    def __init__(self, fn):
        self._state, self._random = StateService(), Random(0)
        super().__init__(self._fragment(fn), [Worker(self._random.choice([0, 100]))])

    def replace(self, fn):
        self.forget()
        self.fragment = self._fragment(fn)

    def _fragment(self, fn):
        set_clock(fn._clock)
        self.fn = copy(fn)
        self.fn._clock = clock
        return Fragment.of(self.fn, self._state)

    def due(self, watermark_us, now_us):
        """Returns the ``(key, timer, time)`` of every timer whose time has passed."""
        self.input_us, self.now_us = watermark_us, now_us
        due = super().due().items()
        return [(key, family, timer.fire_timestamp.micros) for key, timers in due for family, timer in timers]

    def clock_times(self):
        """Yields the time in µs of each timer of the clock."""
        for timers in self.timers.values():
            for family, (timer, _) in timers.items():
                if not self.fragment.of_watermark[family]:
                    yield timer.fire_timestamp.micros

    def timers_left(self):
        """Yields what is left of timers."""
        return (each for each in self.left() if each[0] == "timer")

    def bag(self, name):
        """Yields the content of a bag, over all keys."""
        for key, data in self._state.values():
            if beam_fn_api_pb2.StateKey.FromString(key).bag_user_state.user_state_id == name:
                yield from _BYTES.decode_all(data)

    def run(self, calls, fails_after=None):
        """Runs a bundle for each key, and returns their outputs. All of them fail if ``fails_after`` is not None."""
        elements, timers = {}, {}
        for call in calls:
            if isinstance(call, tuple) and len(call) == 3:
                key, family, _ = call
                timers.setdefault(key, []).append((family, self.timers[key][family][0]))
            else:
                at, value = (call.timestamp, call.value) if isinstance(call, TimestampedValue) else (Timestamp(0), call)
                element = WindowedValue(value, at, (GlobalWindow(),)), False
                elements.setdefault(value[0], []).append(element)
        failure = None if fails_after is None else self._random.choice([LOST, REFUSED])
        outputs = []
        for key in {**elements, **timers}:
            of_key = elements.get(key, []), timers.get(key, [])
            outputs += self.bundle(key, *of_key, failure, self._random)[1]
        return [value.value if tag == "None" else TaggedOutput(tag, value.value) for tag, value, _ in outputs]
