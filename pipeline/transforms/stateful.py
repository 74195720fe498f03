"""The base of steps with state and timers."""

import apache_beam as beam

from pipeline.private_apis import state_cache, timer_holds


class StatefulFn(beam.DoFn):
    """A step with state or timers, in a process whose cache of state and whose timers are as this job needs them."""

    def setup(self) -> None:
        super().setup()
        state_cache.prepare()
        timer_holds.check()
