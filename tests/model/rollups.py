"""The steps of a job that roll up, called as Beam would: those of one table, and the elements in flight before each."""

from collections import defaultdict

from pipeline.core.rollups.due import read_written
from pipeline.core.rollups.group_rules import GroupRules
from pipeline.core.rollups.levels import ShardWindow
from pipeline.core.rollups.settling import RollupSettling
from pipeline.core.schema.rate import group_of
from pipeline.transforms.rollups import _GroupsFn, _ShardsFn
from tests.model.beam_steps import Step
from tests.support.merged_rollups import differences, expected_rollups, found_rollups, member_in


class RollupStage:
    """The steps of one table.

    Args:
        stage: the stage that aggregates.

    Attributes:
        steps: each step that computes, with what is in flight before it: since when, and the element.
        unwritten: rows in flight before they are written, by the step that computes from them, likewise.
    """

    def __init__(self, stage):
        self._stage = stage
        self.steps = {name: (Step(fn), []) for name, fn in self._fns().items()}
        self.unwritten = {name: [] for name in self.steps}

    def update(self):
        for name, fn in self._fns().items():
            self.steps[name][0].replace(fn)

    def _fns(self):
        arguments = *self._stage.target[:2], self._stage.job.world.clock
        return {"shards": _ShardsFn(*arguments), "groups": _GroupsFn(*arguments)}

    def take(self, name, element):
        """Takes rows to write, with what is due for a step then."""
        self.unwritten[name].append((self._stage.job.world.now_us, element))

    def advance(self, share, old_us, timers_us=None):
        """Advances what is in flight, as the stage does; returns whether there was anything."""
        job, worked = self._stage.job, False
        for name, (step, queue) in self.steps.items():
            worked |= self._write_then_due(name, queue, share, old_us)
            calls = self._stage._calls(step, queue, share, old_us, timers_us)
            if not calls:
                continue
            worked = True
            if job.random.random() < 0.2:
                failed = step.run(calls, job.random.randint(0, len(calls)))
                if name == "groups":
                    self._write(row for rows in failed for row in rows if job.random.random() < 0.5)
            for output in step.run(calls):
                if name == "groups":
                    self._write(output)
                else:
                    self.take("groups", output)
        return worked

    def _write_then_due(self, name, queue, share, old_us):
        """Writes rows as the step does that computes them, which it is fused with: those of a key in order."""
        job, unwritten = self._stage.job, self.unwritten[name]
        old = [each for each in unwritten if each[0] <= old_us]
        taken = old[: sum(job.random.random() < share for _ in old)]
        unwritten[: len(taken)] = []
        for _, element in taken:
            written = read_written(element)
            if job.random.random() < 0.2:  # a bundle that fails writes some rows, and comes again
                self._write(row for row in written.rows if job.random.random() < 0.5)
            self._write(written.rows)
            queue += [(job.world.now_us, due) for due in written.due]
        return bool(taken)

    def _write(self, rows):
        """Writes rows in any order."""
        rows = list(rows)
        self._stage.job.random.shuffle(rows)
        self._stage.job.world.tables[self._stage.target.name].write_rows(rows)

    def in_flight(self):
        """Returns whether anything is in flight, or waits for a timer."""
        waits = any(queue or any(step.timers_left()) for step, queue in self.steps.values())
        return waits or any(self.unwritten.values())

    def next_us(self, writing_us, delay_us):
        """Yields the times at which an element, or a timer, has been in flight for so long."""
        for name, (step, queue) in self.steps.items():
            yield from (since_us + writing_us for since_us, _ in (*queue, *self.unwritten[name]))
            yield from (time_us + delay_us for time_us in step.clock_times())


def wrong_groups(schema, table, rows):
    """Returns what differs between a table's roll-ups and its aggregate rows, which are given."""
    expected = expected_rollups(schema, rows, lambda *window: member_in(schema, table, *window))
    return differences(found_rollups(schema, table), expected)


def settle_groups(schema, table, windows):
    """Settles the roll-ups of sensors' windows, by length, sensor and start, as repairs do."""
    rules, shards = GroupRules(schema), defaultdict(list)
    indexes = {tier.window.text: index for index, tier in enumerate(schema.tiers) if rules.rollups_of(index)}
    for text, sensor_id, start_us in windows:
        if text in indexes:
            shard = group_of(sensor_id.encode(), schema.shards_of_rollups)
            shards[ShardWindow(indexes[text], start_us, shard)].append(sensor_id)
    RollupSettling(rules, table, table.write_rows, less=True).settle(shards)
