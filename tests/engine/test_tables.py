"""The random histories of the model of tables, with the SDK's worker code and bundles of one key."""

from unittest import mock

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.engine.model_step import SdkStep
from tests.model import job
from tests.model.machine import Tables
from tests.support.exhaustive import examples


def test_random_histories_in_the_sdks_worker():
    """No reading is lost or counted twice, whichever worker is lost, and whichever commit is refused."""
    with mock.patch.object(job, "Step", SdkStep):
        run_state_machine_as_test(
            Tables,
            settings=settings(
                max_examples=examples(20),
                derandomize=True,
                database=None,
                stateful_step_count=30,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                print_blob=False,
            ),
        )
