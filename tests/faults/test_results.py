"""Results of windows agree with the table, whatever happens to the process."""

import random

import pytest

from tests.faults.feed import HOUR_US, Feed, batches, now_us, series
from tests.job.running import running_job
from tests.support.results import columns, decoded, newest_columns
from tests.support.waiting import eventually


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("which", "encoding"), [("final", "protobuf"), ("all", "json")])
def test_results_of_killed_jobs(resources, tmp_path, which, encoding):
    """kill -9 and a restart: once the feed is published again, the greatest result of each window is its row."""
    rng, feed = random.Random(which), Feed(resources)
    topic, subscription = resources.feed("results")
    flags = resources.flags(results_topic=topic, results=which, results_encoding=encoding)
    start_us = now_us() // HOUR_US * HOUR_US - 3 * HOUR_US
    events = [event for sensor in range(3) for event in series(f"s{sensor}", start_us, 181)]
    rng.shuffle(events)
    messages = list(batches(events, 5))
    results = []

    def new_results():
        results.extend(each.message for each in resources.pull(subscription))
        return results

    for kill in range(3):
        feed.publish(messages[kill * 30 : (kill + 1) * 30])
        with running_job(flags, tmp_path / f"{kill}.log") as job:
            eventually(new_results if which == "all" else resources.raw_keys)
            job.process.kill()
    feed.publish(messages)
    with running_job(flags, tmp_path / "last.log") as job:
        feed.wait_counted(90)
        assert job.stop() == 0
    rows = columns(resources.rows())
    assert len(rows) == 3 * 4
    if which == "final":  # the DirectRunner stops without an end of time, so this hour is still to be published
        rows = {window: row for window, row in rows.items() if window[2] < start_us + 3 * HOUR_US}
    eventually(lambda: newest_columns(map(decoded, new_results())) == rows)
    contents = {}
    for message in results:  # a message may come twice, and is the same then
        assert contents.setdefault(message.attributes["event_id"], message.data) == message.data
    kinds = {message.attributes["kind"] for message in results}
    assert kinds - {"late"} == ({"on_time", "early"} if which == "all" else {"on_time"})
