"""How writes spread over tablets: a simulation with the schema's own row keys."""

import random
from bisect import bisect_right
from collections import Counter
from datetime import timedelta
from itertools import repeat

from pipeline.core.schema.gc_policies import collected_after
from pipeline.plan.workload import START_US, Workload

TABLETS = 100
_SENSORS, _TIMES = 400, 200
_DEFAULT_KEPT = timedelta(days=90)
_LEAST_KEPT = timedelta(days=1)


def hottest_share(workload: Workload, tablets: int = TABLETS) -> float:
    """Returns the share of raw writes that go to the hottest of so many tablets of equal size, from 0 to 1.

    Bigtable keeps contiguous keys in a tablet, and splits tablets as they grow: Chang et al., "Bigtable: A Distributed
    Storage System for Structured Data" (OSDI 2006), section 5.1. So the keys of what is kept, rendered by the schema,
    are divided into equal parts; then it counts into which part each sensor's next event falls. Sensors report at
    random moments. It neither splits tablets for load nor moves them, as Bigtable also does; where all writes go to the
    newest keys, neither helps ("Schema design", cloud.google.com/bigtable/docs/schema-design).
    """
    rng = random.Random(1)
    schema = workload.schema
    ages = [collected_after(schema.policies[family]) for family in schema.metrics.families]
    kept_us = max(max(age or _DEFAULT_KEPT for age in ages), _LEAST_KEPT) // timedelta(microseconds=1)
    step = max(1, workload.sensors // _SENSORS)
    sensors = [number * step for number in range(min(workload.sensors, _SENSORS))]
    metric = workload.metrics[0]

    def key(sensor: int, time_us: int) -> bytes:
        return schema.key.render(workload.event(sensor, time_us, repeat(20.0)), metric)

    stored = sorted(
        key(sensor, START_US - kept_us + kept_us * (number + 1) // (_TIMES + 1) + rng.randrange(workload.every_us))
        for sensor in sensors
        for number in range(_TIMES)
    )
    splits = [stored[len(stored) * number // tablets] for number in range(1, tablets)]
    later_us = START_US + workload.every_us
    writes = Counter(
        bisect_right(splits, key(sensor, later_us + rng.randrange(workload.every_us))) for sensor in sensors
    )
    return max(writes.values()) / len(sensors)
