"""What `make template` and `make launch` would run."""

import math
import re
import shlex
import subprocess

import pytest

from pipeline import __version__
from tests.templates.making import FLAGS, IMAGE, PLACE, ROOT, SPEC, TAGGED, commands, environment, make

KEY = "projects/my-project/locations/europe-west4/keyRings/ring/cryptoKeys/key"


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
        "gcloud builds submit --project=my-project --region=europe-west4 --config=templates/cloudbuild.yaml "
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
    performance = (ROOT / "docs/performance.md").read_text().partition("| on Dataflow |")[2]
    rate = int(re.search(r"connector \| 1 \| ([\d,]+) \|", performance)[1].replace(",", ""))
    assert "10,000 sensors at 1 Hz" in (ROOT / "docs/size.md").read_text()
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


@pytest.mark.parametrize(
    ("variables", "option"),
    [
        ({"SERVICE_ACCOUNT": "a@b.iam.gserviceaccount.com"}, "--service-account-email=a@b.iam.gserviceaccount.com"),
        ({"MACHINE_TYPE": "n2-standard-2"}, "--worker-machine-type=n2-standard-2"),
        ({"NUM_WORKERS": "2"}, "--num-workers=2"),
        ({"MAX_WORKERS": "9"}, "--max-workers=9"),
        ({"SUBNETWORK": "regions/europe-west4/subnetworks/s"}, "--subnetwork=regions/europe-west4/subnetworks/s"),
        ({"PRIVATE": "1"}, "--disable-public-ips"),
        ({"LAUNCHER_MACHINE_TYPE": "n2-standard-2"}, "--launcher-machine-type=n2-standard-2"),
        (
            {"KMS_KEY": "projects/p/locations/l/keyRings/r/cryptoKeys/k"},
            "--dataflow-kms-key=projects/p/locations/l/keyRings/r/cryptoKeys/k",
        ),
        ({"LABELS": "team=weather\n    env=prod"}, "--additional-user-labels=^ ^team=weather env=prod"),
        ({"PIPELINE_OPTIONS": "a=1,2 b=*"}, "--additional-pipeline-options=^ ^a=1,2 b=*"),
        ({"MIN_WORKERS": "2"}, "--additional-experiments=^ ^min_num_workers=2"),
        ({"SERVICE_OPTIONS": "a b=0.7"}, "--additional-experiments=^ ^a b=0.7"),
        ({"AT_LEAST_ONCE": "1"}, "--additional-experiments=^ ^streaming_mode_at_least_once"),
        (
            {"SERVICE_OPTIONS": "a", "MIN_WORKERS": "2", "AT_LEAST_ONCE": "1"},
            "--additional-experiments=^ ^a min_num_workers=2 streaming_mode_at_least_once",
        ),
        ({"UPDATE": "1"}, "--update"),
    ],
)
def test_launch_options(variables, option):
    """Each further variable adds one option; those for experiments share one."""
    plain = launch_command()
    assert launch_command(**variables) == [*plain, option]


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
    ("target", "variables", "message"),
    [
        ("template", {"BUILDER": "podman"}, "make: BUILDER is podman; it must be cloud or docker"),
        ("template", {"DRY_RUN": "yes"}, "make: DRY_RUN is yes; it must be 1 or 0"),
        (
            "launch",
            {"PARAMETERS": FLAGS, "SNAPSHOT": "1"},
            "make: SNAPSHOT is 1 without UPDATE=1; it must be set with an update",
        ),
        ("launch", {"PARAMETERS": FLAGS, "PRIVATE": "yes"}, "make: PRIVATE is yes; it must be 1 or 0"),
        (
            "launch",
            {"PARAMETERS": "bigtable_table"},
            "make: PARAMETERS has 'bigtable_table'; it must be name=value, separated by spaces",
        ),
    ],
)
def test_wrong_variables(target, variables, message):
    """An invalid value is reported in one line, and nothing is run."""
    assert refusal(target, TAGGED | variables) == [message]


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
    words = launch_command(
        PRIVATE="1",
        AT_LEAST_ONCE="1",
        MIN_WORKERS="2",
        MAX_WORKERS="3",
        UPDATE="1",
        KMS_KEY="k",
        LABELS="a=b c=d",
        PIPELINE_OPTIONS="a=b c=d",
        LAUNCHER_MACHINE_TYPE="n2-standard-2",
    )
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
