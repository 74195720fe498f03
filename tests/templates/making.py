"""Runs `make template` and `make launch`."""

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PLACE = {"PROJECT": "my-project", "REGION": "europe-west4", "REPOSITORY": "images"}
TAGGED = PLACE | {"TAG": "1.2"}
IMAGE = "europe-west4-docker.pkg.dev/my-project/images/tidetable:1.2"
SPEC = "gs://my-project-tidetable-staging/templates/tidetable-1.2.json"
FLAGS = (
    "input_subscription=projects/my-project/subscriptions/events bigtable_instance=my-instance "
    "bigtable_table=sensors dead_letters=drop"
)
OURS = re.compile(
    r"PROJECT|REGION|REPOSITORY|BUCKET|TAG|BUILDER|PARAMETERS|JOB|SERVICE_ACCOUNT|(LAUNCHER_)?MACHINE_TYPE"
    r"|(NUM|MIN|MAX)_WORKERS|SUBNETWORK|PRIVATE|KMS_KEY|LABELS|(PIPELINE|SERVICE)_OPTIONS|AT_LEAST_ONCE|UPDATE|SNAPSHOT"
    r"|DRY_RUN|MAKE.*|MFLAGS|CLOUDSDK_.*"
)
# Said in a dry run with PRIVATE=1.
UNCHECKED = "make: DRY_RUN: whether subnetwork default has Private Google Access is not checked; PRIVATE=1 needs it: "
ENABLE = (
    "gcloud compute networks subnets update default --project=my-project --region=europe-west4 "
    "--enable-private-ip-google-access"
)


def environment() -> dict[str, str]:
    """Returns this machine's environment without variables that change the targets."""
    return {name: value for name, value in os.environ.items() if not OURS.fullmatch(name)}


def make(target: str, variables: dict[str, str], path: str = "") -> subprocess.CompletedProcess[str]:
    """Runs a target, by default in make's dry-run mode."""
    declared = [f"{name}={value}" for name, value in ({"DRY_RUN": "1"} | variables).items()]
    return subprocess.run(
        ["make", "--no-print-directory", target, *declared],
        cwd=ROOT,
        env=environment() | {"PATH": path + os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )


def commands(target: str, variables: dict[str, str]) -> list[str]:
    """Returns the printed commands, one per line."""
    made = make(target, variables)
    said = f"{UNCHECKED}{ENABLE}\n" if variables.get("PRIVATE") == "1" and not variables.get("SUBNETWORK") else ""
    assert (made.returncode, made.stderr) == (0, said)
    return made.stdout.splitlines()
