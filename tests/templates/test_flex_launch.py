"""Launches the template locally: the image's installation, then the launcher's command."""

import json
import os
import re
import shutil
import subprocess
import threading
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from pathlib import Path

import pytest
from apache_beam.internal import pickler
from apache_beam.portability.api import beam_runner_api_pb2 as beam_proto
from packaging.requirements import Requirement

from tests.job import foreign
from tests.support.google_cloud import BUCKET, RUNNING, running_dataflow, running_storage
from tests.support.linking import link
from tests.templates.dockerfile import ROOT, environment, instructions

IMAGE = "europe-west4-docker.pkg.dev/test-project/images/tidetable:1"
# For parameters without a default; input_topic excludes the subscription.
VALUES = {
    "input_subscription": "projects/test-project/subscriptions/events",
    "timestamp_attribute": "event_time",
    "id_attribute": "event_id",
    "dead_letter_topic": "projects/test-project/topics/dead-letters",
    "alerts_topic": "projects/test-project/topics/alerts",
    "results_topic": "projects/test-project/topics/results",
    "bigtable_project": "test-project",
    "bigtable_instance": "instance",
    "bigtable_table": "table,other",
    "schema": "default",
    "window": "15m",
    "raw_family": "raw",
    "stats_family": "stats",
    "meta_family": "meta",
    "app_profile": "batch-writes",
}
# These need files in the bucket.
OF_MESSAGES = {
    "message_mapping": f"gs://{BUCKET}/report.toml",
    "message_descriptors": f"gs://{BUCKET}/types.binpb",
    "message_decoder": "posixpath:join",  # any function of the image with two arguments
    "default_message_type": foreign.REPORT,
}


# A metadata server like that of a Google machine provides a launcher's credentials.
ACCOUNT = "tidetable@test-project.iam.gserviceaccount.com"
_ACCOUNT_PATH = "/computeMetadata/v1/instance/service-accounts/"
_TOKEN = {"access_token": "token", "expires_in": 3600, "token_type": "Bearer"}
_ABOUT = {"email": ACCOUNT, "aliases": ["default"], "scopes": ["https://www.googleapis.com/auth/cloud-platform"]}
_ANSWERS = {
    "/": "",
    "/computeMetadata/v1/project/project-id": "test-project",
    "/computeMetadata/v1/universe/universe-domain": "googleapis.com",
    f"{_ACCOUNT_PATH}default/": json.dumps(_ABOUT),
    f"{_ACCOUNT_PATH}{ACCOUNT}/": json.dumps(_ABOUT),
    f"{_ACCOUNT_PATH}default/token": json.dumps(_TOKEN),
    f"{_ACCOUNT_PATH}{ACCOUNT}/token": json.dumps(_TOKEN),
}


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        answer = _ANSWERS.get(self.path.partition("?")[0])
        self.send_response(404 if answer is None else 200)
        self.send_header("Metadata-Flavor", "Google")
        self.send_header("Content-Type", "application/json" if answer and answer.startswith("{") else "text/plain")
        self.end_headers()
        self.wfile.write((answer or "").encode())

    def log_message(self, *_: object) -> None:
        """Logs nothing."""


@contextmanager
def running_metadata_server() -> Iterator[str]:
    """Runs a metadata server, and yields host and port for ``GCE_METADATA_HOST`` and ``GCE_METADATA_IP``."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


INSTALL = "pip install --no-deps --require-hashes -r requirements.txt"


class Image:
    """Executes the Dockerfile in a folder instead of a container, with a virtual environment of its own.

    The pinned requirements are linked from this environment instead of installed again, which takes a minute: it has
    them with the same hashes. A requirement that is missing from the file is missing there too.
    """

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self._bin = folder / "venv" / "bin"
        self._workdir = self.root
        venv.create(folder / "venv")
        for keyword, text in instructions():
            step = {"WORKDIR": self._change, "COPY": self._copy, "RUN": self._run}.get(keyword)
            if step:
                step(text)

    def path(self, inside: str) -> Path:
        """Returns where a path of the image, or one relative to the working directory, is on this machine."""
        return self.root / inside.lstrip("/") if inside.startswith("/") else self._workdir / inside

    def env(self, **more: str) -> dict[str, str]:
        """Returns the image's environment, with only this machine's variables that locate programs and packages."""
        foreign = ("PYTHON", "VIRTUAL", "GOOGLE", "CLOUDSDK", "NO_GCE", "NO_PROXY")
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        image = environment()
        image.pop("PIP_NO_CACHE_DIR")  # it makes images smaller, but this test slower
        return inherited | image | {"PATH": f"{self._bin}{os.pathsep}{os.environ['PATH']}"} | more

    def _change(self, folder: str) -> None:
        self._workdir = self.path(folder)
        self._workdir.mkdir(parents=True)

    def _copy(self, text: str) -> None:
        if text.startswith("--from"):
            return  # Google's programs, which are not copied
        *sources, target = text.split()
        for source in sources:
            destination = self.path(target) / source if target.endswith("/") else self.path(target)
            destination.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, destination, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copyfile(ROOT / source, destination)

    def _link_requirements(self) -> None:
        (packages,) = self._bin.parent.glob("lib/python*/site-packages")
        for line in re.findall(r"^([a-z0-9].*?) *\\?$", self.path("requirements.txt").read_text(), re.MULTILINE):
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate():
                distribution = metadata.distribution(requirement.name)
                assert distribution.version in requirement.specifier
                link(distribution, packages)
        pip = self._bin / "pip"
        pip.write_text(f"#!{self._bin}/python\nimport runpy\nrunpy.run_module('pip', run_name='__main__')\n")
        pip.chmod(0o755)

    def _run(self, command: str) -> None:
        if command == INSTALL:
            self._link_requirements()
            return
        done = subprocess.run(
            ["/bin/sh", "-c", command], cwd=self._workdir, env=self.env(), capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


def launch(image, storage, parameters, *more):
    """Runs the image's file as the launcher does: with its flags and account, and no other network access."""
    arguments = {
        "runner": "DataflowRunner",
        "project": "test-project",
        "region": "europe-west4",
        "job_name": "tidetable-test",
        "machine_type": "n2-standard-2",
        "num_workers": "1",
        "max_num_workers": "3",
        "service_account_email": ACCOUNT,
        "template_location": f"gs://{BUCKET}/staging/template_launches/1/job_object",
        "staging_location": f"gs://{BUCKET}/staging",
        "temp_location": f"gs://{BUCKET}/temp",
        "sdk_container_image": IMAGE,
        "experiments": "streaming_mode_at_least_once",
        "labels": '{"team": "weather"}',
        "launch_checks": "off",
    }
    flags = [f"--{name}={value}" for name, value in (parameters | arguments).items()]
    flags += ["--enable-streaming-engine", *more]
    nowhere = "http://127.0.0.1:9"
    empty = image.root / "empty"
    empty.mkdir(exist_ok=True)
    with running_metadata_server() as machine:
        return subprocess.run(
            ["python", image.path(environment()["FLEX_TEMPLATE_PYTHON_PY_FILE"]), *flags],
            cwd=empty,
            env=image.env(
                STORAGE_EMULATOR_HOST=storage.url,
                GCE_METADATA_HOST=machine,
                GCE_METADATA_IP=machine,
                CLOUDSDK_CONFIG=str(empty),  # nobody is logged in here
                http_proxy=nowhere,
                https_proxy=nowhere,
                no_proxy="127.0.0.1,localhost",
            ),
            capture_output=True,
            text=True,
            check=False,
        )


def parameters():
    """A value for every parameter of the metadata that can be combined with the others."""
    declared = json.loads((ROOT / "templates/metadata.json").read_text())["parameters"]
    return {
        each["name"]: each.get("defaultValue") or VALUES[each["name"]]
        for each in declared
        if each["name"] not in {"input_topic", *OF_MESSAGES}
    } | {"bigtable_writer": "bulk"}  # only this writer has an app profile


JOB_OBJECT = "staging/template_launches/1/job_object"
HOUR_US = 3_600_000_000


def said(launched):
    """Our own lines: Google's clients also report that there is no way to their servers."""
    return [line for line in launched.stderr.splitlines() if line.startswith("tidetable: ")]


def now_us():
    return time.time_ns() // 1000


def began_at_us(storage):
    """The label of the staged job that says when it began."""
    return int(json.loads(storage.read(JOB_OBJECT))["labels"]["tidetable-began"])


def restores(storage, start_us):
    """Whether the staged job reads back what the table stores of a sensor's window, for each of its aggregations."""
    (graph,) = [name for name in storage.names() if name.endswith("/pipeline.pb")]
    steps = beam_proto.Pipeline.FromString(storage.read(graph)).components.transforms.values()
    payloads = [step.spec.payload for step in steps if "/Aggregate/ParDo" in step.unique_name]
    assert payloads
    answers = set()
    for payload in payloads:
        fn, *_ = pickler.loads(beam_proto.ParDoPayload.FromString(payload).do_fn.payload)
        answers.add(start_us < fn.aggregation.before_us)
    (answer,) = answers
    return answer


def update(image, storage, endpoint, **changes):
    return launch(image, storage, parameters() | changes | {"dataflow_endpoint": endpoint}, "--update")


def a_launch_stages_the_job(image):
    """The image, run by the launcher's command with every parameter, stages a job with that image. A flag that nobody
    knows is a warning and not the end of the launch.

    The job restores windows that began before the launch, and reads nothing for later ones. An update takes over the
    beginning of the job that it replaces. An empty parameter is none.
    """
    with running_storage() as storage, running_dataflow() as (dataflow, endpoint):
        storage.write("report.toml", foreign.REPORT_MAPPING.encode())
        storage.write("types.binpb", foreign.DESCRIPTORS)
        before_us = now_us()
        launched = launch(image, storage, parameters() | OF_MESSAGES, "--windows=1h", "--zzz", "me")
        assert launched.returncode == 0, launched.stderr
        assert said(launched)[:3] == [
            "tidetable: unknown argument --windows=1h; did you mean --window?; ignored",
            "tidetable: unknown argument --zzz; ignored",
            "tidetable: unknown argument me; ignored",
        ]
        staged = set(storage.names()) - {"report.toml", "types.binpb"}
        job = json.loads(storage.read(JOB_OBJECT))
        # The graph and a list of installed packages; no packages, which the image has, and no pickled __main__.
        assert sorted(name.rpartition("/")[2] for name in staged) == [
            "job_object",
            "pipeline.pb",
            "submission_environment_dependencies.txt",
        ]
        assert job["type"] == "JOB_TYPE_STREAMING"
        assert job["name"] == "tidetable-test"
        assert job["labels"]["team"] == "weather"
        assert {"streaming_mode_at_least_once", "enable_streaming_engine"} <= set(job["environment"]["experiments"])
        assert [pool["workerHarnessContainerImage"] for pool in job["environment"]["workerPools"]] == [IMAGE]
        assert before_us <= began_at_us(storage) <= now_us()
        assert restores(storage, before_us)
        assert restores(storage, now_us() - HOUR_US)
        # --max-future is an hour: a job before this one may have written windows up to an hour ahead.
        assert not restores(storage, now_us() + HOUR_US + 1)
        began_us = began_at_us(storage) - 24 * HOUR_US
        labels = job["labels"] | {"tidetable-began": str(began_us)}
        dataflow.jobs.append({"id": "job-0", "name": "tidetable-test", "currentState": RUNNING, "labels": labels})
        storage.clear()
        launched = update(image, storage, endpoint, early_firing="", app_profile="")
        assert launched.returncode == 0, launched.stderr
        assert began_at_us(storage) == began_us
        assert restores(storage, began_us)
        assert not restores(storage, began_us + HOUR_US + 1)
        assert json.loads(storage.read(JOB_OBJECT))["replaceJobId"] == "job-0"


def a_launch_refuses(image):
    """What no regex of the metadata can check, the launch refuses in one line, and nothing is staged."""
    with running_storage() as storage:
        launched = launch(image, storage, parameters() | {"window": "7h"})
        assert storage.names() == []
    assert launched.returncode == 2
    assert (
        launched.stderr == "tidetable: --window: a window of 7h does not divide a day; use one like 15m, 1h, 6h or 1d\n"
    )


@pytest.mark.timeout(300)
def test_launches(tmp_path):
    """The installed image launches and updates jobs, and refuses what no regex can check. It is built once for all."""
    image = Image(tmp_path)
    a_launch_refuses(image)
    a_launch_stages_the_job(image)
    shutil.rmtree(tmp_path)  # it takes a gigabyte
