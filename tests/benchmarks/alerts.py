"""Prints what rules of alerts add to the CPU time of a job: ten rules on readings, and one on silence.

The real graph runs on the FnApiRunner, with and without rules, on the same messages: events of three metrics, a
hundred in a message, of sensors that send one a minute each, for an hour. Sensors share as many groups as a million
would, so a group's readings of a bundle are as few as theirs. One reading in ten thousand is beyond a limit. Rows
are put out, and not written. Five rules are on all sensors, five on globs; two of them take ``for``, and one metric has
no rule. No sensor is silent. The table is not read: nothing is restored, and a sensor's raw rows are empty.

Each is measured several times, in turn, and the least CPU time counts: the machine may do other things.

Run with ``.venv/bin/python -m tests.benchmarks.alerts``.
"""

import argparse
import random
import time
from contextlib import ExitStack
from dataclasses import replace
from unittest import mock

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from pipeline.core.alerts.rule_set import RuleSet
from pipeline.core.alerts.rules import parse_rules
from pipeline.core.alerts.stored_alerts import StoredAlerts, StoredValues
from pipeline.core.events.message import message_of, sensor_event
from pipeline.core.schema.rate import Rate
from pipeline.core.schema.table_schema import TableSchema
from pipeline.job.graph import build_graph
from pipeline.job.settings import Target, parse_flags, settings_of
from pipeline.private_apis.dofn_specs import specs_by_class
from pipeline.private_apis.option_views import kept_views
from pipeline.transforms import alert_table
from pipeline.transforms.alert_table import AlertTableFn
from tests.support.confirming import confirming, dropping
from tests.support.streams import flags, pubsub_message

_RULES = "".join(
    f'[[rule]]\nname = "rule-{number}"\nsensors = "{sensors}"\nmetric = "{metric}"\n{condition}\n'
    for number, (sensors, metric, condition) in enumerate(
        [
            ("*", "temperature", "above = 100"),
            ("*", "temperature", 'above = 90\nclears_below = 80\nfor = "10m"'),
            ("*", "temperature", "below = -100"),
            ("*", "humidity", "outside = [-100, 100]"),
            ("*", "humidity", 'above = 95\nfor = "5m"'),
            ("sensor-0*", "temperature", "above = 95"),
            ("sensor-*7", "temperature", "above = 95"),
            ("sensor-1*", "humidity", "below = -90"),
            ("sensor-??1*", "humidity", "above = 99"),
            ("other-*", "temperature", "above = 0"),
        ]
    )
)


_BEGAN = time.time() - 7200


def _clock() -> float:
    return _BEGAN  # in the past, so that the runner fires all timers at once


def cpu_seconds(messages: list[beam.io.gcp.pubsub.PubsubMessage], rules: RuleSet | None) -> float:
    """Returns the CPU time in which a job processes messages, watching them by the rules if there are any."""
    schema = replace(TableSchema.for_new_table(), rate=Rate(60_000_000, metrics=3, sensors=1_000_000))
    topic = {"alerts_topic": "projects/test-project/topics/alerts"} if rules else {}
    settings = settings_of(parse_flags(flags(**topic)))
    targets = [Target(name, schema) for name in settings.tables]
    alert_table._shared.clear()
    began = time.process_time()
    with ExitStack() as stack:
        stack.enter_context(specs_by_class())
        stack.enter_context(kept_views())
        stack.enter_context(mock.patch.object(alert_table, "read_rules", return_value=rules))
        for name, answer in (("_open", None), ("restored", StoredAlerts([], {})), ("records", {}), ("silent", [])):
            stack.enter_context(mock.patch.object(AlertTableFn, name, lambda *_, answer=answer: answer))
        nothing = StoredValues(0, ())
        stack.enter_context(mock.patch.object(AlertTableFn, "values", lambda _, wanted: [nothing for _ in wanted]))
        with beam.Pipeline(FnApiRunner(), PipelineOptions([])) as pipeline:
            elements = pipeline | beam.Create(messages, reshuffle=False)
            outputs = build_graph(elements, targets, settings, _clock, write_raw_rows=confirming, writer_of=dropping)
            for table in outputs.derived:
                for rows in filter(None, table):
                    _ = rows | f"Drop{id(rows)}" >> beam.FlatMap(lambda _: ())
    return time.process_time() - began


def fleet(sensors: int, minutes: int) -> list[beam.io.gcp.pubsub.PubsubMessage]:
    """Returns the messages of a fleet, each sensor with an event a minute, in the order of time."""
    rng, begin_us = random.Random(1), int(_clock() - 60 * minutes) * 1_000_000
    events = []
    for minute in range(minutes):
        order = list(range(sensors))
        rng.shuffle(order)
        for place, sensor in enumerate(order):
            beyond = 1000 if rng.random() < 0.0001 else 0
            readings = {
                "battery": round(rng.gauss(3, 0.1), 2),
                "humidity": round(rng.gauss(0, 10), 2),
                "temperature": round(rng.gauss(0, 10), 2) + beyond,
            }
            time_us = begin_us + 60_000_000 * minute + 60_000_000 * place // sensors
            events.append(sensor_event(f"sensor-{sensor:07}", time_us, readings, {}))
    return [pubsub_message(message_of(events[i : i + 100])) for i in range(0, len(events), 100)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sensors", type=int, default=4_000)
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--times", type=int, default=3)
    arguments = parser.parse_args()
    messages = fleet(arguments.sensors, arguments.minutes)
    schema = TableSchema.for_new_table()
    on_readings = RuleSet(parse_rules(_RULES, "", schema))
    on_silence = RuleSet(parse_rules('[[rule]]\nname = "silent"\nsilent_for = "30m"\n', "", schema))
    kinds: dict[str, RuleSet | None] = {
        "without rules": None,
        f"with {len(on_readings.rules)} rules on readings": on_readings,
        "with a rule on silence": on_silence,
    }
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(arguments.times):
        for kind, rules in kinds.items():
            seconds[kind].append(cpu_seconds(messages, rules))
    events, plain = arguments.sensors * arguments.minutes, min(seconds["without rules"])
    for kind, measured in seconds.items():
        more = 100 * (min(measured) / plain - 1)
        print(f"{kind}: {min(measured) / events * 1e6:.1f} µs of CPU an event, {more:.0f} % more")


if __name__ == "__main__":
    main()
