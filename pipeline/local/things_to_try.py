"""The commands that ``tidetable demo --keep`` suggests, to be pasted into another terminal as they stand."""

import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from pipeline.cloud.names import TableName


def exports(environment: Mapping[str, str]) -> list[str]:
    """Returns shell commands after which a terminal finds the emulators, and ``tidetable`` too."""
    lines = [f"export {name}={shlex.quote(value)}" for name, value in environment.items()]
    if shutil.which("tidetable") is None:
        lines.append(f'export PATH={shlex.quote(str(Path(sys.executable).parent))}:"$PATH"')
    return lines


def suggestions(
    table: TableName, topic: str, dead_letters: str, sensor_id: str, metric: str, between: tuple[str, str]
) -> list[tuple[str, str]]:
    """Returns commands to try, each with what it does.

    Args:
        table: the demo's table.
        topic: the topic that the job's subscription reads.
        dead_letters: a subscription with the demo's dead letters.
        sensor_id: a sensor with aggregates.
        metric: a metric of that sensor.
        between: the start and the end of the demo's day.
    """
    in_table = f"--project {table.project} --instance {table.instance} --table {table.table}"
    in_day = f"--from {between[0]} --to {between[1]}"
    return [
        ("the sensors", f"tidetable read sensors {in_table}"),
        ("the newest reading", f"tidetable read latest {sensor_id} {in_table}"),
        ("a chart", f"tidetable read plot {sensor_id} --metric {metric} {in_day} {in_table}"),
        ("more events", f"tidetable simulate --duration 10m --topic {topic}"),
        ("what was refused", f"tidetable dead-letters list --subscription {dead_letters}"),
        # The job accepts late events for two days: --force audits what it may still write.
        ("an audit", f"tidetable repair --dry-run --force {in_day} {in_table}"),
    ]
