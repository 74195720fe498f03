"""What `make launch` asks Google first, and what it makes of the answers."""

import pytest

from tests.templates.making import ENABLE, FLAGS, TAGGED, commands, make

# A gcloud that keeps what it is asked, and answers from a file: lines of the words that a command has, and the answer.
GCLOUD = """#!/usr/bin/env bash
echo "$*" >>"$(dirname "$0")/asked"
while IFS='|' read -r words answer status; do
    case "$*" in *"$words"*) [ "$status" = 0 ] && echo "$answer" || echo "$answer" >&2; exit "$status" ;; esac
done <"$(dirname "$0")/answers"
"""


def launched(folder, answers, target="launch", **variables):
    """Makes a target with a gcloud that answers like this. Returns the result and what gcloud was asked."""
    (folder / "gcloud").write_text(GCLOUD)
    (folder / "gcloud").chmod(0o755)
    (folder / "answers").write_text("".join(f"{line}\n" for line in answers))
    made = make(target, TAGGED | {"PARAMETERS": FLAGS, "JOB": "tide", "DRY_RUN": "0"} | variables, f"{folder}:")
    return made, (folder / "asked").read_text().splitlines()


def test_nothing_is_asked_before_the_parameters_are_right(tmp_path):
    """A launch with a misspelled parameter asks nothing, takes no snapshot and starts no job."""
    (tmp_path / "asked").touch()
    variables = {"PARAMETERS": f"{FLAGS} result_topic=x", "PRIVATE": "1", "UPDATE": "1", "SNAPSHOT": "1"}
    made, asked = launched(tmp_path, [], **variables)
    assert (made.returncode, made.stdout, asked) == (2, "", [])
    assert "make: PARAMETERS: there is no parameter result_topic; did you mean results_topic?" in made.stderr


def test_a_build_that_is_denied(tmp_path):
    """A template whose image was not built is not published, and the remedy is named."""
    made, asked = launched(tmp_path, ["builds submit|ERROR: PERMISSION_DENIED|1"], "template")
    assert (made.returncode, len(asked)) == (2, 1)
    assert made.stderr.splitlines()[:2] == [
        "ERROR: PERMISSION_DENIED",
        "make: the image was not built; if the build was denied something, docs/launch.md has the roles, or set "
        "BUILDER=docker",
    ]


def test_private_access_is_checked(tmp_path):
    """With private addresses, the subnetwork is looked at first; one of another project is looked at there."""
    made, (look, run) = launched(tmp_path, ["subnets describe|True|0"], PRIVATE="1")
    assert (made.returncode, made.stderr) == (0, "")
    assert look.startswith("compute networks subnets describe default --project=my-project --region=europe-west4 ")
    assert run.startswith("dataflow flex-template run tide ")


@pytest.mark.parametrize(
    ("subnetwork", "place"),
    [
        ("regions/us-east1/subnetworks/s", "s --project=my-project --region=us-east1"),
        ("projects/host/regions/us-east1/subnetworks/s", "s --project=host --region=us-east1"),
        ("https://x/compute/v1/projects/host/regions/us-east1/subnetworks/s", "s --project=host --region=us-east1"),
        ("s", "s --project=my-project --region=europe-west4"),
    ],
)
def test_the_subnetwork_that_is_checked(tmp_path, subnetwork, place):
    """Every form in which Dataflow takes a subnetwork is understood."""
    _, (look, *_) = launched(tmp_path, ["subnets describe|True|0"], PRIVATE="1", SUBNETWORK=subnetwork)
    assert look.startswith(f"compute networks subnets describe {place} ")


def test_no_private_access(tmp_path):
    """Without Private Google Access nothing is launched, and the remedy is named."""
    made, asked = launched(tmp_path, ["subnets describe|False|0"], PRIVATE="1")
    assert made.returncode == 2  # make's own
    assert made.stderr.splitlines()[0] == (
        f"make: subnetwork default has no Private Google Access, which PRIVATE=1 needs; enable it: {ENABLE}"
    )
    assert len(asked) == 1


def test_private_access_that_nobody_may_see(tmp_path):
    """Someone who may not look at the subnetwork is told so, and the job is launched."""
    made, asked = launched(tmp_path, ["subnets describe|ERROR: permission denied|1"], PRIVATE="1")
    assert made.returncode == 0
    assert made.stderr.splitlines() == [
        "make: could not check whether subnetwork default has Private Google Access, which PRIVATE=1 needs: "
        "ERROR: permission denied",
        f"make: if Dataflow refuses the job: {ENABLE}",
    ]
    assert asked[-1].startswith("dataflow flex-template run ")


def test_a_snapshot_before_an_update(tmp_path):
    """The running job is looked up and its snapshot taken; the update starts when that is ready."""
    answers = ["jobs list|job-1|0", "snapshots create|snap-1|0", "snapshots describe|READY|0"]
    made, (look, take, wait, run) = launched(tmp_path, answers, UPDATE="1", SNAPSHOT="1")
    assert made.returncode == 0, made.stderr
    assert "--filter=name=tide" in look
    assert take.startswith("dataflow snapshots create ")
    assert "--snapshot-sources=true" in take
    assert take.endswith(" --job-id=job-1")
    assert wait.startswith("dataflow snapshots describe snap-1 ")
    assert run.endswith(" --update")
    assert made.stdout == "snapshot snap-1 of job job-1, kept for 7 days\n"


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        (
            ["jobs list||0"],
            "make: no job named tide is running in europe-west4; see: gcloud dataflow jobs list",
        ),
        (
            ["jobs list|job-1|0", "snapshots create|snap-1|0", "snapshots describe|FAILED|0"],
            "make: snapshot snap-1 is FAILED; the job was not updated",
        ),
        (["jobs list|job-1|0", "snapshots create|ERROR: denied|1"], "ERROR: denied"),
        (
            ["jobs list|job-1|0", "snapshots create|snap-1|0", "snapshots describe|ERROR: denied|1"],
            "ERROR: denied",
        ),
    ],
)
def test_no_update_without_the_snapshot(tmp_path, answers, message):
    """A job whose snapshot fails is not updated."""
    made, asked = launched(tmp_path, answers, UPDATE="1", SNAPSHOT="1")
    assert made.returncode == 2
    assert made.stderr.splitlines()[0] == message
    assert not [command for command in asked if "flex-template" in command]


def test_a_snapshot_in_a_dry_run():
    """The printed command takes the snapshot of the job that runs under the name."""
    variables = TAGGED | {"PARAMETERS": FLAGS, "JOB": "tide", "UPDATE": "1", "SNAPSHOT": "1"}
    take, _ = commands("launch", variables)
    assert take.startswith("gcloud dataflow snapshots create ")
    assert take.endswith(
        '--job-id="$(gcloud dataflow jobs list --project=my-project --region=europe-west4 --status=active '
        "--filter=name=tide '--format=value(id)')\""
    )
