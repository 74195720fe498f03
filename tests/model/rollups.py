"""The steps of a job that roll up, called as Beam would: those of one table, and the elements in flight before each."""

from collections import defaultdict

from apache_beam.pvalue import TaggedOutput

from pipeline.core.rollups.group_rules import GroupRules
from pipeline.core.rollups.group_settling import GroupSettling, GroupWindow
from pipeline.core.rollups.settling import ShardSettling, ShardWindow, settled_parts
from pipeline.core.schema.rate import group_of
from pipeline.job.table_steps import TableSteps
from pipeline.transforms.rollups import _CollectRollupsFn, _GroupsFn, _ShardsFn
from tests.model.beam_steps import Step
from tests.support.merged_rollups import differences, expected_rollups, found_rollups, member_in


class RollupStage:
    """The steps of one table.

    Args:
        stage: the stage that aggregates.

    Attributes:
        steps: each step with what is in flight before it: since when, and the element.
    """

    def __init__(self, stage):
        self._stage = stage
        self.steps = {name: (Step(fn), []) for name, fn in self._fns().items()}

    def update(self):
        for name, fn in self._fns().items():
            self.steps[name][0].replace(fn)

    def _fns(self):
        job, (name, schema) = self._stage.job, self._stage.target[:2]
        before_us = TableSteps(self._stage.target, job.settings, "")._before_us(job.began_us)
        arguments = name, schema, before_us, job.world.clock
        return {
            "shards": _ShardsFn(*arguments),
            "groups": _GroupsFn(*arguments),
            "rows": _CollectRollupsFn(job.world.clock),
        }

    def take(self, name, element):
        """Takes an element for a step."""
        self.steps[name][1].append((self._stage.job.world.now_us, element))

    def advance(self, share, old_us, timers_us=None):
        """Advances what is in flight, as the stage does; returns whether there was anything."""
        job, worked = self._stage.job, False
        for name, (step, queue) in self.steps.items():
            calls = self._stage._calls(step, queue, share, old_us, timers_us)
            if not calls:
                continue
            worked = True
            if job.random.random() < 0.2:
                failed = step.run(calls, job.random.randint(0, len(calls)))
                if name == "rows":
                    self._write(row for rows in failed for row in rows if job.random.random() < 0.5)
            for output in step.run(calls):
                if name == "rows":
                    self._write(output)
                elif isinstance(output, TaggedOutput):
                    self.take("groups", output.value)
                else:
                    self.take("rows", output)
        return worked

    def _write(self, rows):
        """Writes rows in any order."""
        rows = list(rows)
        self._stage.job.random.shuffle(rows)
        self._stage.job.world.tables[self._stage.target.name].write_rows(rows)

    def in_flight(self):
        """Returns whether anything is in flight, or waits for a timer."""
        return any(queue or any(step.timers_left()) for step, queue in self.steps.values())

    def next_us(self, writing_us, delay_us):
        """Yields the times at which an element, or a timer, has been in flight for so long."""
        for step, queue in self.steps.values():
            yield from (since_us + writing_us for since_us, _ in queue)
            yield from (time_us + delay_us for time_us in step.clock_times())


def wrong_groups(schema, table, rows):
    """Returns what differs between a table's roll-ups and its aggregate rows, which are given."""
    expected = expected_rollups(schema, rows, lambda *window: member_in(schema, table, *window))
    return differences(found_rollups(schema, table), expected)


def settle_groups(schema, table, windows):
    """Settles the roll-ups of sensors' windows, by length, sensor and start, as repairs and backfills do."""
    rules = GroupRules(schema)
    arguments = table, table.write_rows
    indexes = {tier.window.text: index for index, tier in enumerate(schema.tiers) if rules.rollups_of(index)}
    shards, groups = defaultdict(list), defaultdict(dict)
    for text, sensor_id, start_us in windows:
        if text in indexes:
            shard = group_of(sensor_id.encode(), schema.shards_of_rollups)
            shards[ShardWindow(indexes[text], start_us, shard)].append(sensor_id)
    for of, settled in ShardSettling(schema, rules, *arguments).settle(shards).items():
        for part in settled_parts(rules, of, settled, settled.groups):
            groups[GroupWindow(of.tier, of.start_us, part.group)][of.shard] = part
    GroupSettling(rules, *arguments).settle(groups)
