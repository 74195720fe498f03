"""What `make template` and `make launch` would run, what they ask Google first, and what they make of the answers."""

import math
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from pipeline import __version__

ROOT = Path(__file__).parent.parent.parent
PLACE = {"PROJECT": "my-project", "REGION": "europe-west4", "REPOSITORY": "images"}
TAGGED = PLACE | {"TAG": "1.2"}
IMAGE = "europe-west4-docker.pkg.dev/my-project/images/tidetable:1.2"
SPEC = "gs://my-project-tidetable-staging/templates/tidetable-1.2.json"
KEY = "projects/my-project/locations/europe-west4/keyRings/ring/cryptoKeys/key"
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


def launch_command(**variables):
    """Returns the words of the one command of a launch."""
    (command,) = commands("launch", TAGGED | {"PARAMETERS": FLAGS, "JOB": "tide"} | variables)
    return shlex.split(command)


def refusal(target, variables):
    """Returns what is printed for invalid variables, without make's own last line."""
    made = make(target, variables)
    assert made.returncode == 2
    assert made.stdout == ""
    *lines, last = made.stderr.splitlines()
    assert last.startswith("make: ***")
    return lines


def test_template():
    """Cloud Build builds and pushes the image; then the spec is published and completed."""
    assert commands("template", TAGGED) == [
        "gcloud builds submit --project=my-project --region=europe-west4 "
        "--gcs-source-staging-dir=gs://my-project-tidetable-staging/source --config=templates/cloudbuild.yaml "
        f"--substitutions=_IMAGE={IMAGE} .",
        f"gcloud dataflow flex-template build {SPEC} --project=my-project --image={IMAGE} --sdk-language=PYTHON "
        "--metadata-file=templates/metadata.json --enable-streaming-engine "
        "--staging-location=gs://my-project-tidetable-staging/staging "
        "--temp-location=gs://my-project-tidetable-staging/temp --worker-machine-type=n2-standard-2 --max-workers=5",
        "mkdir -p build",
        f"gcloud storage cp {SPEC} build/template.json",
        "python3 templates/complete_spec.py build/template.json templates/metadata.json",
        f"gcloud storage cp build/template.json {SPEC}",
        f"echo 'published {SPEC} with {IMAGE}'",
    ]


def test_template_with_other_workers():
    """The template's workers can have another machine type, and be more."""
    build = commands("template", TAGGED | {"MACHINE_TYPE": "n2-standard-4", "MAX_WORKERS": "20"})[1]
    assert build.endswith("--worker-machine-type=n2-standard-4 --max-workers=20")


def test_the_most_workers_fit_the_manual():
    """The default carries the manual's example, 10,000 events/s with the connector, with as much again to catch up."""
    build = shlex.split(commands("template", TAGGED)[1])
    (most,) = [int(word.partition("=")[2]) for word in build if word.startswith("--max-workers=")]
    vcpus = int(next(word for word in build if word.startswith("--worker-machine-type=")).rpartition("-")[2])
    performance = (ROOT / "docs/throughput.md").read_text().partition("| on Dataflow |")[2]
    rate = int(re.search(r"connector \| 1 \| ([\d,]+) \|", performance)[1].replace(",", ""))
    assert "10,000 sensors at 1 Hz" in (ROOT / "docs/size-and-cost.md").read_text()
    assert most * vcpus * rate >= 2 * 10_000
    assert math.ceil(10_000 / (0.6 * rate) / vcpus) == 2  # as the manual says


def test_every_variable_is_in_the_manual():
    """The manual has every variable of a launch, and the variables of Terraform beside them exist."""
    manual = (ROOT / "docs/launch.md").read_text()
    launch = (ROOT / "Makefile").read_text().partition("#   launch")[2].partition("# flex.sh")[0]
    for name in re.findall(r"[A-Z]+(?:_[A-Z]+)*", launch):
        assert re.search(rf"\b{name}\b", manual), name
    declared = set(re.findall(r'variable "(\w+)"', (ROOT / "templates/terraform/variables.tf").read_text()))
    for row in manual.partition("## Options")[2].partition("\n\nThe image")[0].splitlines()[4:]:
        assert set(re.findall(r"`([a-z_]+)`", row.split("|")[2])) <= declared, row


def test_template_with_docker():
    """With a Docker engine, the image can be built and pushed locally instead."""
    build, push, publish, *_ = commands("template", TAGGED | {"BUILDER": "docker"})
    assert build == f"docker build --platform=linux/amd64 --file=templates/Dockerfile --tag={IMAGE} ."
    assert push == f"docker push {IMAGE}"
    assert publish.startswith("gcloud dataflow flex-template build ")


def test_launch():
    """The template, whose spec has the image, runs with our parameters, staged in the same bucket."""
    assert commands("launch", TAGGED | {"PARAMETERS": FLAGS, "JOB": "tide"}) == [
        "gcloud dataflow flex-template run tide --project=my-project --region=europe-west4 "
        f"--template-file-gcs-location={SPEC} '--parameters=^ ^{FLAGS}' "
        "--staging-location=gs://my-project-tidetable-staging/staging "
        "--temp-location=gs://my-project-tidetable-staging/temp --enable-streaming-engine"
    ]


OPTIONS = {
    "SERVICE_ACCOUNT": "a@b.iam.gserviceaccount.com",
    "MACHINE_TYPE": "n2-standard-2",
    "LAUNCHER_MACHINE_TYPE": "n2-standard-2",
    "NUM_WORKERS": "2",
    "MAX_WORKERS": "9",
    "SUBNETWORK": "regions/europe-west4/subnetworks/s",
    "KMS_KEY": KEY,
    "LABELS": "team=weather\n    env=prod",
    "PIPELINE_OPTIONS": "experiments=1,2 experiments=*",
    "SERVICE_OPTIONS": "a b=0.7",
    "MIN_WORKERS": "2",
    "AT_LEAST_ONCE": "1",
    "UPDATE": "1",
}


def test_launch_options():
    """Each further variable adds one option; those for experiments share one."""
    assert launch_command(**OPTIONS) == [
        *launch_command(),
        "--service-account-email=a@b.iam.gserviceaccount.com",
        "--worker-machine-type=n2-standard-2",
        "--launcher-machine-type=n2-standard-2",
        "--num-workers=2",
        "--max-workers=9",
        "--subnetwork=regions/europe-west4/subnetworks/s",
        f"--dataflow-kms-key={KEY}",
        "--additional-user-labels=^ ^team=weather env=prod",
        "--additional-pipeline-options=^ ^experiments=1,2 experiments=*",
        "--additional-experiments=^ ^a b=0.7 min_num_workers=2 streaming_mode_at_least_once",
        "--update",
    ]


@pytest.mark.parametrize(
    ("variables", "option"),
    [
        ({"PRIVATE": "1"}, "--disable-public-ips"),
        ({"MIN_WORKERS": "2"}, "--additional-experiments=^ ^min_num_workers=2"),
        ({"AT_LEAST_ONCE": "1"}, "--additional-experiments=^ ^streaming_mode_at_least_once"),
    ],
)
def test_one_launch_option(variables, option):
    """A variable adds its option alone, too."""
    assert launch_command(**variables)[-1] == option


def test_switches_with_zero_are_off():
    """A switch with the value 0 is off."""
    assert launch_command(PRIVATE="0", AT_LEAST_ONCE="0", UPDATE="0") == launch_command()


def test_bucket():
    """Another bucket gets the spec and everything staged."""
    words = launch_command(BUCKET="mine")
    assert "--template-file-gcs-location=gs://mine/templates/tidetable-1.2.json" in words
    assert {"--staging-location=gs://mine/staging", "--temp-location=gs://mine/temp"} <= set(words)
    assert "gs://mine/templates/tidetable-1.2.json" in commands("template", TAGGED | {"BUCKET": "mine"})[-1].split()


def test_values_survive_quoting():
    """Commas, quotes, stars and equals signs in a value reach gcloud unchanged."""
    parameters = f"{FLAGS} id_attribute=it's,a~key=*|x"
    words = launch_command(PARAMETERS=parameters)
    assert f"--parameters=^ ^{parameters}" in words


def test_parameters_over_lines():
    """Parameters can span lines and columns."""
    assert launch_command(PARAMETERS="\n    " + FLAGS.replace(" ", "\n    ")) == launch_command()


def test_default_image_names():
    """Without a tag, image and spec are named after version and commit, the same in both targets."""
    publish = commands("template", PLACE)[1]
    (run,) = commands("launch", PLACE | {"PARAMETERS": FLAGS, "JOB": "tide"})
    (image,) = re.findall(r"--image=(\S+)", publish)
    assert re.fullmatch(rf".*/tidetable:{re.escape(__version__)}(-[0-9a-f]{{7,40}}(-dirty)?)?", image)
    assert run.split("/tidetable-")[1].split(".json")[0] == image.rpartition(":")[2]


def test_default_job_names():
    """The default job name is valid and contains the start time."""
    words = shlex.split(commands("launch", TAGGED | {"PARAMETERS": FLAGS})[0])
    assert re.fullmatch(r"tidetable-\d{8}-\d{6}", words[words.index("run") + 1])


def test_missing_variables():
    """Each missing variable is reported in one line that names it, with an example."""
    lines = refusal("template", {})
    assert [line.split()[1] for line in lines] == ["PROJECT", "REGION", "REPOSITORY"]
    assert all(re.fullmatch(r"make: (\w+) is required: .*, \1=\S+", line) for line in lines)
    assert [line.split()[1] for line in refusal("launch", {})] == ["PROJECT", "REGION", "REPOSITORY", "PARAMETERS"]
    assert refusal("launch", TAGGED | {"PARAMETERS": FLAGS, "UPDATE": "1"}) == [
        "make: JOB is required: the name of the running job, JOB=tidetable"
    ]


@pytest.mark.parametrize(
    ("target", "variables", "messages"),
    [
        (
            "template",
            {
                "PROJECT": "My",
                "REGION": "europe-west4-a",
                "REPOSITORY": "a/b",
                "BUCKET": "gs://mine",
                "TAG": "a:b",
                "MACHINE_TYPE": "large",
                "MAX_WORKERS": "0",
                "DRY_RUN": "yes",
                "BUILDER": "podman",
            },
            [
                "PROJECT is My; it must be a project id, like my-project",
                "REGION is europe-west4-a; it must be a region, like europe-west4, not a zone",
                "REPOSITORY is a/b; it must be the name of a repository, like my-repository",
                "BUCKET is gs://mine; it must be the name of a bucket, like my-bucket, without gs://",
                "TAG is a:b; it must be the tag of an image, like 1.2",
                "MACHINE_TYPE is large; it must be a machine type, like n2-standard-2",
                "MAX_WORKERS is 0; it must be a number from 1 to 9999",
                "DRY_RUN is yes; it must be 1 or 0",
                "BUILDER is podman; it must be cloud or docker",
            ],
        ),
        (
            "launch",
            {
                "PARAMETERS": FLAGS.replace("bigtable_table=sensors", "result_topic=r"),
                "PIPELINE_OPTIONS": "num_wokers=3",
                "PRIVAT": "1",
                "SNAPSHOT": "1",
                "JOB": "Tide",
                "SERVICE_ACCOUNT": "tidetable-job",
                "PRIVATE": "yes",
                "MIN_WORKERS": "two",
                "KMS_KEY": "k",
                "LABELS": "a=b Team=c",
                "SERVICE_OPTIONS": "a b-c",
            },
            [
                "there is no variable PRIVAT; the Makefile lists all",
                "SNAPSHOT is 1 without UPDATE=1; it must be set with an update",
                "JOB is Tide; it must be at most 63 lower-case letters, digits and hyphens, first a letter, last no "
                "hyphen",
                "SERVICE_ACCOUNT is tidetable-job; it must be an account's address, like "
                "tidetable-job@my-project.iam.gserviceaccount.com",
                "PRIVATE is yes; it must be 1 or 0",
                "MIN_WORKERS is two; it must be a number from 1 to 9999",
                "KMS_KEY is k; it must be a key, like "
                "projects/my-project/locations/europe-west4/keyRings/my-ring/cryptoKeys/my-key",
                "LABELS is a=b Team=c; it must be name=value, separated by spaces, in lower-case letters, digits, "
                "hyphens and underscores",
                "SERVICE_OPTIONS is a b-c; it must be name or name=value, separated by spaces, like "
                "worker_utilization_hint=0.7",
                "PARAMETERS: there is no parameter result_topic; did you mean results_topic?",
                "PIPELINE_OPTIONS: there is no option num_wokers; did you mean num_workers?",
                "PARAMETERS: --results-topic: topic 'r' is not a full path; write projects/PROJECT/topics/TOPIC",
                "PARAMETERS: --bigtable-table is needed",
            ],
        ),
        (
            "launch",
            {"PARAMETERS": FLAGS, "VENV": "none"},
            ["none/bin/python is missing, which checks PARAMETERS; run: make setup"],
        ),
    ],
)
def test_wrong_variables(target, variables, messages):
    """Each problem is one line, whether the run is dry or not, and nothing is run."""
    assert refusal(target, TAGGED | variables) == [f"make: {message}" for message in messages]


def test_every_variable_is_known():
    """Every variable that the Makefile explains may be set, together with those of the set-up."""
    made = make("template", TAGGED | OPTIONS | {"PARAMETERS": "", "BUILDER": "", "PYTHON": "python3", "BUCKET": ""})
    assert (made.returncode, made.stderr) == (0, "")


def test_nothing_is_set_up_first():
    """Neither target builds the virtual environment."""
    planned = subprocess.run(
        ["make", "--no-print-directory", "--dry-run", "--always-make", "template", "launch"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert planned.stdout.splitlines() == ["templates/flex.sh template", "templates/flex.sh launch"]


def test_cloud_build_builds_this_dockerfile():
    """The submitted build names the Dockerfile and the image to push."""
    text = (ROOT / "templates/cloudbuild.yaml").read_text()
    assert "--file=templates/Dockerfile" in text
    assert "images: [$_IMAGE]" in text


@pytest.mark.usefixtures("gcloud")
def test_gcloud_reads_the_commands(tmp_path):
    """The real gcloud accepts every option of a launch: it only fails for lack of a login."""
    words = launch_command(**OPTIONS | {"PRIVATE": "1", "SUBNETWORK": ""})
    ran = subprocess.run(
        words,
        env=environment()
        | {
            "CLOUDSDK_CONFIG": str(tmp_path),  # nobody is logged in here
            "CLOUDSDK_CORE_CHECK_GCE_METADATA": "false",
            "CLOUDSDK_CORE_DISABLE_PROMPTS": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 1
    assert "You do not currently have an active account selected" in ran.stderr


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
