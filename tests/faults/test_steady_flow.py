"""Events keep coming while the job runs."""

import json
import re

from click.testing import CliRunner

from pipeline.cli.root import main
from tests.job.running import running_job
from tests.support.waiting import eventually

DEADLINE_MS = 10_000  # after which Pub/Sub delivers again what was handed out and not acknowledged
FLOW = ["--live", "--rate", "300", "--sensor-count", "300", "--duration", "12s", "--malformed", "0"]


def test_no_message_waits(resources, log):
    """No event of a steady flow takes as long as an acknowledgement deadline, or until the flow ends."""
    with running_job(resources.flags(), log) as job:
        done = CliRunner().invoke(main, ["simulate", "--topic", resources.topic, *FLOW, "--format=json"])
        assert done.exit_code == 0, done.output
        published = json.loads(done.stdout)["events"]
        eventually(lambda: len(resources.raw_keys()) == published)
        assert job.stop() == 0
    assert job.counters()["events"] == published
    (oldest_ms,) = re.findall(r"^event_delay_ms .* to ([\d,]+)$", job.log, re.MULTILINE)
    assert int(oldest_ms.replace(",", "")) < DEADLINE_MS
