"""The job that Terraform runs: what it sets, what it leaves to the template's spec, and what it checks first."""

import json

from apache_beam.options.pipeline_options import PipelineOptions

from tests.templates.hcl import DATA, LOCALS, RESOURCES, VARIABLES, of_kind
from tests.templates.provider_schema import EXTRACT

JOB = RESOURCES["google_dataflow_flex_template_job", "input"]
# What the provider reads back from a job's pipeline options, in the names of Beam for Java, and what it sets with it.
READ_BACK = {
    "maxNumWorkers": "max_workers",
    "network": "network",
    "numWorkers": "num_workers",
    "sdkContainerImage": "sdk_container_image",
    "stagingLocation": "staging_location",
    "subnetwork": "subnetwork",
    "tempLocation": "temp_location",
    "workerMachineType": "machine_type",
}


def test_an_apply_does_not_update_an_unchanged_job():
    """No argument is set that the provider reads back from an option which a Python job does not have."""
    known = set(PipelineOptions([]).get_all_options())
    lost = {argument for option, argument in READ_BACK.items() if option not in known}
    assert {"temp_location", "sdk_container_image", "machine_type", "max_workers"} <= lost
    assert not lost & set(JOB)
    schema = json.loads(EXTRACT.read_text())["resource google_dataflow_flex_template_job"]
    assert set(READ_BACK.values()) <= set(schema["optional"])


def test_experiments_are_never_empty():
    """An experiment that is taken away is taken away from the job: an empty list would leave all of them."""
    assert JOB["additional_experiments"] == "${local.experiments}"
    assert '["min_num_workers=${var.min_workers}"]' in LOCALS["experiments"]
    assert VARIABLES["min_workers"]["default"] == 1


def test_private_workers_need_private_google_access():
    """A job without public addresses is refused, with the remedy, if its subnetwork has no Private Google Access."""
    subnetwork = DATA["google_compute_subnetwork", "workers"]
    assert VARIABLES["private"]["default"] in (True, "true")
    assert "var.private" in JOB["ip_configuration"]
    for condition in ("var.private", 'var.launch_checks == "on"', "var.template_path != null"):
        assert condition in subnetwork["count"]
    for part in ("project", "region", "name"):
        assert subnetwork[part] == f"${{local.subnetwork.{part}}}"
    (precondition,) = JOB["lifecycle"][0]["precondition"]
    assert "data.google_compute_subnetwork.workers[*].private_ip_google_access" in precondition["condition"]
    assert "gcloud compute networks subnets update" in precondition["error_message"]
    assert "--enable-private-ip-google-access" in precondition["error_message"]


def test_the_key_encrypts_all_that_is_stored():
    """With a key, state, messages, tables and files are encrypted with it, once its services may use it."""
    (cluster,) = [each["cluster"] for each in RESOURCES["google_bigtable_instance", "main"]["dynamic"]]
    (bucket,) = [
        each["encryption"] for each in RESOURCES["google_storage_bucket", "staging"]["dynamic"] if "encryption" in each
    ]
    encrypted = [JOB, *of_kind("google_pubsub_topic").values(), cluster["content"][0]]
    assert {body["kms_key_name"] for body in encrypted} == {"${var.kms_key}"}
    assert "var.kms_key" in bucket["for_each"]
    for kind in ("dataflow_flex_template_job", "pubsub_topic", "bigtable_instance", "storage_bucket"):
        for body in of_kind(f"google_{kind}").values():
            assert "${google_kms_crypto_key_iam_member.agent}" in body["depends_on"]
