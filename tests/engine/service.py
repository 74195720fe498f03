"""A stage as Dataflow runs it: elements, state and timers by key, bundles of one key, commits, and watermarks.

What is modelled was read in Beam's Java worker for Dataflow, its Python SDK and its issues; the service is closed:

- A bundle contains elements of one key and timers of that key that are due, in any order. A timer of the bundle fires
  even if a call before it has cleared it or set it again.
- A commit contains the state, the timers and the outputs of a bundle, or nothing of it. It may fail after the bundle
  has ended, and the bundle is repeated.
- If a step raises, the worker goes on: the bundle is repeated by the same process, which has the same cache and gets
  the same token for it.
- A timer holds the output watermark at the time that the SDK sends with it, unless that is the end of time. An element
  in flight holds the input watermark at its timestamp. What is behind a watermark when it comes does not hold it.
"""

from collections import defaultdict

from apache_beam.portability.api import beam_fn_api_pb2
from apache_beam.utils.timestamp import MAX_TIMESTAMP, MIN_TIMESTAMP

from pipeline.cloud.connection.errors import ServerError
from tests.engine.fragment import Done, StepRaised, WorkerLost
from tests.engine.worker import Worker

END_US = MAX_TIMESTAMP.micros
LOST, REFUSED, RAISED = "the worker is lost", "the commit is refused", "a step raises"


class TooLarge(Exception):
    """Dataflow would refuse this commit again and again."""


class Stage:
    """A stage.

    Args:
        fragment: its steps. Another one that has the same state may take over, as in an update.
        workers: the workers; one by default.
        commit_bytes: the most that the state and outputs of a bundle may take.
        element_bytes: the most that an output or an appended part of state may take.

    Attributes:
        waiting: elements by key.
        timers: timers by key and family.
        input_us: the input watermark.
        output_us: the output watermark.
        largest: the largest commit and the largest element so far.
        output_bytes: the bytes of all outputs so far.
    """

    def __init__(self, fragment, workers=(), commit_bytes=180 << 20, element_bytes=80 << 20):
        self.fragment, self.workers = fragment, list(workers) or [Worker(0)]
        self._limits, self.largest = (commit_bytes, element_bytes), (0, 0)
        self.output_bytes = 0
        self.waiting, self.timers = defaultdict(list), defaultdict(dict)
        self._before_us = self.input_us = self.output_us = MIN_TIMESTAMP.micros
        self.now_us = 0
        self._leases, self._number = {}, 0  # by key, the worker and its token

    def add(self, values):
        """Takes elements of the stage before."""
        for value in values:
            key = value.value[0] if self.fragment.has_state else None
            self.waiting[key].append((value, value.timestamp.micros >= self.input_us))

    def advance(self, before_us, now_us):
        """Takes the clock's time, and the output watermark of the stage before."""
        self.now_us, self._before_us = now_us, max(self._before_us, before_us)
        waiting = [value.timestamp.micros for each in self.waiting.values() for value, holds in each if holds]
        self.input_us = max(self.input_us, min([self._before_us, *waiting]))
        holds = [hold_us for each in self.timers.values() for _, hold_us in each.values() if hold_us is not None]
        self.output_us = max(self.output_us, min([self.input_us, *holds]))

    def due(self):
        """Returns the keys with elements or timers that are due, and those timers."""
        found = {key: [] for key, elements in self.waiting.items() if elements}
        for key, timers in self.timers.items():
            for family, (timer, _) in timers.items():
                passed_us = self.input_us if self.fragment.of_watermark[family] else self.now_us
                if timer.fire_timestamp.micros <= passed_us:
                    found.setdefault(key, []).append((family, timer))
        return found

    def work(self, random, failure=None):
        """Runs a bundle of any key that has something to do. Returns whether it is committed, and its outputs."""
        due = self.due()
        key = random.choice(list(due))
        elements = random.sample(self.waiting[key], random.randint(not due[key], len(self.waiting[key])))
        timers = random.sample(due[key], random.randint(not elements, len(due[key])))
        return self.bundle(key, elements, timers, failure, random)

    def bundle(self, key, elements, timers, failure=None, random=None):
        """Runs a bundle; see :meth:`work`. Without ``random``, all come as given, and timers last."""
        calls = len(elements) + len(timers)
        error = {LOST: WorkerLost, RAISED: StepRaised}.get(failure)
        after = random.choice([None, *range(calls + 1)]) if error else None
        worker, token = self._lease(key, random)
        try:
            done = self.fragment.run(worker, token, [value for value, _ in elements], timers, error, after, random)
        except ServerError:  # until the cause is removed
            done, failure = Done(), RAISED
        if failure is not None:
            self.fragment.state.restore()
            if failure != RAISED:
                del self._leases[key]
            if failure == LOST:
                worker.begin()
            return False, done.outputs
        self._check_size(done)
        self.fragment.state.commit()
        self.waiting[key] = [each for each in self.waiting[key] if all(each is not taken for taken in elements)]
        of_key = self.timers[key]
        for family, _ in timers:
            del of_key[family]
        for family, timer in done.timers:
            of_key.pop(family, None)
            if not timer.clear_bit:
                hold_us = timer.hold_timestamp.micros
                of_key[family] = timer, hold_us if hold_us >= self.output_us else None
        return True, done.outputs

    def _lease(self, key, random):
        """Returns the worker that has a key, and its token; now and then, another worker gets the key."""
        if key not in self._leases or (len(self.workers) > 1 and random is not None and random.random() < 0.2):
            worker = self.workers[0] if random is None else random.choice(self.workers)
            if key not in self._leases or worker is not self._leases[key][0]:
                self._number += 1
                self._leases[key] = worker, b"%d" % self._number
        return self._leases[key]

    def forget(self):
        """Makes all workers read again what they have in their caches."""
        self._leases.clear()

    def _check_size(self, done):
        parts = [*done.sizes, *map(len, self.fragment.state.written)]
        self.output_bytes += sum(done.sizes)
        self.largest = max(self.largest[0], sum(parts)), max([self.largest[1], *parts])
        if any(most > limit for most, limit in zip(self.largest, self._limits, strict=True)):
            raise TooLarge(f"a commit of {self.largest[0]} bytes, or an element of {self.largest[1]}")

    def left(self):
        """Yields everything that is left: elements, timers and state."""
        for key, elements in self.waiting.items():
            yield from (("element", key) for _ in elements)
        for key, timers in self.timers.items():
            yield from (("timer", key, family) for family in timers)
        for key, _ in self.fragment.state.values():
            yield "state", beam_fn_api_pb2.StateKey.FromString(key).bag_user_state.user_state_id
