"""Calls a DoFn with state and timers as a runner would: bundles of any elements and timers, which may fail."""

from copy import deepcopy
from dataclasses import dataclass, field
from functools import lru_cache
from inspect import signature

import apache_beam as beam
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, get_dofn_specs
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp

_TIMERS = {}  # of each class of DoFns, by name


@dataclass
class _OfKey:
    """The state of a key, and its timers: the time in µs, and the time at which each holds the output watermark."""

    bags: dict = field(default_factory=dict)
    values: dict = field(default_factory=dict)
    timers: dict = field(default_factory=dict)


class _Bag:
    def __init__(self, items):
        self._items = items
        self.add, self.clear = items.append, items.clear

    def read(self):
        return iter(list(self._items))


class _Value:
    def __init__(self, values, name):
        self._values, self._name = values, name

    def read(self):
        return self._values.get(self._name)

    def write(self, value):
        self._values[self._name] = value

    def clear(self):
        self._values.pop(self._name, None)


class _Timer:
    """A timer, which holds the watermark as the SDK asks: at its time, or at its input's if the clock fires it."""

    def __init__(self, timers, name, input_us, is_event_time):
        self._timers, self._name, self._input_us, self._is_event_time = timers, name, input_us, is_event_time

    def set(self, time):
        time_us = Timestamp.of(time).micros
        self._timers[self._name] = time_us, time_us if self._is_event_time else self._input_us

    def clear(self):
        self._timers.pop(self._name, None)


class Step:
    """A DoFn with its state.

    Attributes:
        fn: the DoFn; another one may take over the state.
    """

    def __init__(self, fn):
        self.replace(fn)
        self._keys = {}

    def replace(self, fn):
        """Continues with another DoFn and the same state, as an update does."""
        self.fn = fn
        if type(fn) not in _TIMERS:
            _TIMERS[type(fn)] = {spec.name: spec for spec in get_dofn_specs(fn)[1]}
        self._timers = _TIMERS[type(fn)]
        fn.setup()

    def due(self, watermark_us, now_us):
        """Returns the ``(key, timer, time)`` of every timer whose time has passed."""
        times = {TimeDomain.WATERMARK: watermark_us, TimeDomain.REAL_TIME: now_us}
        return [
            (key, name, time_us)
            for key, of_key in self._keys.items()
            for name, (time_us, _) in of_key.timers.items()
            if time_us <= times[self._timers[name].time_domain]
        ]

    def clock_times(self):
        """Yields the time in µs of each timer of the clock."""
        for of_key in self._keys.values():
            for name, (time_us, _) in of_key.timers.items():
                if self._timers[name].time_domain == TimeDomain.REAL_TIME:
                    yield time_us

    def hold_us(self, default_us):
        """Returns the least time in µs at which a timer holds the output watermark."""
        holds = [hold_us for of_key in self._keys.values() for _, hold_us in of_key.timers.values()]
        return min(holds, default=default_us)

    def timers_left(self):
        """Yields the ``(key, timer)`` of each timer that is set."""
        for key, of_key in self._keys.items():
            yield from ((key, name) for name in of_key.timers)

    def bag(self, name):
        """Yields the content of a bag, over all keys."""
        for of_key in self._keys.values():
            yield from of_key.bags.get(name, ())

    def run(self, calls, fails_after=None):
        """Runs a bundle, and returns its outputs.

        Args:
            calls: elements, ``(key, value)`` or such a TimestampedValue, and timers, ``(key, name, time)``.
            fails_after: fails after so many calls: all changes are undone. None to succeed.
        """
        before = deepcopy(self._keys) if fails_after is not None else None
        self.fn.start_bundle()
        outputs = []
        for call in calls[:fails_after]:
            if isinstance(call, TimestampedValue):
                outputs += self._element(call.value, call.timestamp.micros)
            else:
                outputs += self._element(call, 0) if len(call) == 2 else self._timer(*call)
        outputs += self.fn.finish_bundle() or ()
        if before is not None:
            self._keys = before
        return outputs

    def _element(self, element, time_us):
        return self.fn.process(element, **self._arguments(self.fn.process, element[0], time_us)) or ()

    def _timer(self, key, name, time_us):
        timers = self._keys[key].timers
        if timers.get(name, (None,))[0] != time_us:
            return ()  # set anew, or cleared, in this bundle
        del timers[name]
        callback = self._timers[name]._attached_callback
        return callback(self.fn, **self._arguments(callback, key, time_us)) or ()

    def _arguments(self, method, key, time_us):
        of_key = self._keys.setdefault(key, _OfKey())
        found = {}
        for name, default in _defaults(getattr(method, "__func__", method)).items():
            if isinstance(default, beam.DoFn.StateParam):
                spec = default.state_spec
                is_bag = isinstance(spec, BagStateSpec)
                found[name] = (
                    _Bag(of_key.bags.setdefault(spec.name, [])) if is_bag else _Value(of_key.values, spec.name)
                )
            elif isinstance(default, beam.DoFn.TimerParam):
                spec = default.timer_spec
                found[name] = _Timer(of_key.timers, spec.name, time_us, spec.time_domain == TimeDomain.WATERMARK)
            elif default is beam.DoFn.KeyParam:
                found[name] = key
            elif default is beam.DoFn.TimestampParam:
                found[name] = Timestamp(micros=time_us)
        return found


@lru_cache
def _defaults(function):
    return {name: parameter.default for name, parameter in signature(function).parameters.items()}
