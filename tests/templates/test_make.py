"""What `make template` and `make launch` would run."""

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
FLAGS = (
    "input_subscription=projects/my-project/subscriptions/events bigtable_instance=my-instance "
    "bigtable_table=sensors dead_letters=drop"
)
OURS = re.compile(
    r"PROJECT|REGION|REPOSITORY|BUCKET|TAG|BUILDER|PARAMETERS|JOB|SERVICE_ACCOUNT|MACHINE_TYPE|NUM_WORKERS|MAX_WORKERS"
    r"|SUBNETWORK|PRIVATE|AT_LEAST_ONCE|UPDATE|DRY_RUN|MAKE.*|MFLAGS|CLOUDSDK_.*"
)


def environment():
    """Returns this machine's environment without variables that change the targets."""
    return {name: value for name, value in os.environ.items() if not OURS.fullmatch(name)}


def make(target, variables):
    """Runs a target in make's dry-run mode."""
    declared = [f"{name}={value}" for name, value in ({"DRY_RUN": "1"} | variables).items()]
    return subprocess.run(
        ["make", "--no-print-directory", target, *declared],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )


def commands(target, variables):
    """Returns the printed commands, one per line."""
    made = make(target, variables)
    assert (made.returncode, made.stderr) == (0, "")
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
        "gcloud builds submit --project=my-project --region=europe-west4 --config=templates/cloudbuild.yaml "
        f"--substitutions=_IMAGE={IMAGE} .",
        f"gcloud dataflow flex-template build {SPEC} --project=my-project --image={IMAGE} --sdk-language=PYTHON "
        "--metadata-file=templates/metadata.json --enable-streaming-engine",
        "mkdir -p build",
        f"gcloud storage cp {SPEC} build/template.json",
        "python3 templates/complete_spec.py build/template.json templates/metadata.json",
        f"gcloud storage cp build/template.json {SPEC}",
        f"echo 'published {SPEC} with {IMAGE}'",
    ]


def test_template_with_docker():
    """With a Docker engine, the image can be built and pushed locally instead."""
    build, push, publish, *_ = commands("template", TAGGED | {"BUILDER": "docker"})
    assert build == f"docker build --platform=linux/amd64 --file=templates/Dockerfile --tag={IMAGE} ."
    assert push == f"docker push {IMAGE}"
    assert publish.startswith("gcloud dataflow flex-template build ")


def test_launch():
    """The template runs with our parameters and its own image, staged in the same bucket, with Streaming Engine."""
    assert commands("launch", TAGGED | {"PARAMETERS": FLAGS, "JOB": "tide"}) == [
        "gcloud dataflow flex-template run tide --project=my-project --region=europe-west4 "
        f"--template-file-gcs-location={SPEC} '--parameters=^ ^{FLAGS} sdk_container_image={IMAGE}' "
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
        ({"AT_LEAST_ONCE": "1"}, "--additional-experiments=streaming_mode_at_least_once"),
        ({"UPDATE": "1"}, "--update"),
    ],
)
def test_launch_options(variables, option):
    """Each further variable adds one option."""
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
    assert f"--parameters=^ ^{parameters} sdk_container_image={IMAGE}" in words


def test_parameters_over_lines():
    """Parameters can span lines and columns."""
    assert launch_command(PARAMETERS="\n    " + FLAGS.replace(" ", "\n    ")) == launch_command()


def test_default_image_names():
    """Without a tag, image and spec are named after version and commit, the same in both targets."""
    publish = commands("template", PLACE)[1]
    (run,) = commands("launch", PLACE | {"PARAMETERS": FLAGS, "JOB": "tide"})
    (image,) = re.findall(r"--image=(\S+)", publish)
    assert re.fullmatch(rf".*/tidetable:{re.escape(__version__)}(-[0-9a-f]{{7,40}}(-dirty)?)?", image)
    assert f"sdk_container_image={image}'" in run


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


def test_gcloud_reads_the_commands(tmp_path):
    """The real gcloud accepts every option of a launch: it only fails for lack of a login."""
    words = launch_command(PRIVATE="1", AT_LEAST_ONCE="1", MAX_WORKERS="3", SUBNETWORK="s", UPDATE="1")
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
