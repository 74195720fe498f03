"""The commands that ``tidetable demo --keep`` suggests, ready to be pasted into another terminal."""

import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from pipeline.cloud.connection.names import TableName


def exports(emulators: Mapping[str, str], table: TableName, topic: str, dead_letters: str, results: str) -> list[str]:
    """Returns shell commands after which a terminal finds the emulators, and commands need no options for the demo.

    Args:
        emulators: the variables with the emulators' addresses.
        table: the demo's table.
        topic: the topic that the job reads.
        dead_letters: a subscription with the demo's dead letters.
        results: a subscription with the results of windows.
    """
    variables = {
        **emulators,
        "TIDETABLE_PROJECT": table.project,
        "TIDETABLE_INSTANCE": table.instance,
        "TIDETABLE_TABLE": table.table,
        "TIDETABLE_TOPIC": topic,
        "TIDETABLE_SUBSCRIPTION": dead_letters,
        "TIDETABLE_RESULTS_SUBSCRIPTION": results,
    }
    lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    if shutil.which("tidetable") is None:
        lines.append(f'export PATH={shlex.quote(str(Path(sys.executable).parent))}:"$PATH"')
    return lines


def suggestions(sensor_id: str, metric: str) -> list[tuple[str, str]]:
    """Returns commands to try, each with its purpose. The sensor has aggregates of the metric."""
    return [
        ("the sensors", "tidetable read sensors"),
        ("the newest readings of one", f"tidetable read latest-events {shlex.quote(sensor_id)}"),
        ("a chart", f"tidetable read plot {shlex.quote(sensor_id)} --metric {metric}"),
        ("the hours of a site", "tidetable read rollups site cellar"),
        ("results of finished windows", "tidetable results follow --limit 5"),
        ("more events", "tidetable simulate --duration 10m"),
        ("what was refused", "tidetable dead-letters list"),
        # --include-unsettled audits the windows of the last hours too, which the demo's job may still write.
        ("an audit", "tidetable repair --dry-run --include-unsettled --from -1d --to now"),
    ]
