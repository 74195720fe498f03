"""compose.yaml: its form, and what its services do."""

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
import requests
import yaml

from pipeline.local.emulators import IMAGE, origins, running_emulators
from tests.support.preloaded import TIDETABLE
from tests.support.waiting import eventually
from tests.templates.dockerfile import ROOT

FILE = ROOT / "templates/compose.yaml"
BIN = Path(sys.executable).parent
PROJECT = "http://{}/v1/projects/tidetable-local"


def services():
    return yaml.safe_load(FILE.read_text())["services"]


def arguments(service):
    """Returns the program's arguments, with compose's escapes undone."""
    command = service["command"]
    return [each.replace("$$", "$") for each in (command.split() if isinstance(command, str) else command)]


def test_form():
    """The file follows the specification of compose, and hadolint finds nothing in its Dockerfile."""
    for command in (
        [BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", FILE],
        [BIN / "hadolint", ROOT / "templates/local.Dockerfile"],
    ):
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_emulators_are_those_of_every_command():
    """The emulators' image is the one that tidetable itself runs in Docker."""
    assert {services()[name]["image"] for name in ("pubsub", "bigtable", "topics")} == {IMAGE}


def test_only_this_machine_reaches_the_page():
    """Every published port is on the loopback address."""
    ports = [port for each in services().values() for port in each.get("ports", [])]
    assert ports == ["127.0.0.1:8080:8080"]


@pytest.mark.exhaustive
def test_the_services_work_together(tmp_path):
    """On Google's emulators, what the services run brings the fleet's events to the page, even if begun again."""
    if "built-in" in origins():
        pytest.skip("the built-in Pub/Sub has no REST, which the service `topics` speaks")
    named = services()
    with running_emulators() as emulators, ExitStack() as stack:
        environment = os.environ | named["table"]["environment"] | emulators
        once = {"PROJECT": PROJECT.format(emulators["PUBSUB_EMULATOR_HOST"])}
        for _ in range(2):
            subprocess.run(arguments(named["topics"]), env=environment | once, check=True)
            subprocess.run([*TIDETABLE, *arguments(named["table"])], env=environment, check=True)
        port = 18080 + os.getpid() % 1000
        for name, more in (("job", []), ("page", ["--host=127.0.0.1", f"--port={port}"]), ("fleet", ["--duration=5s"])):
            command = [*TIDETABLE, *arguments(named[name]), *more]
            process = subprocess.Popen(command, env=environment, cwd=tmp_path)
            stack.callback(process.wait, 30)
            stack.callback(process.terminate)

        def shown():
            try:
                return requests.get(f"http://127.0.0.1:{port}/api/v1/latest", timeout=5).json()["sensors"]
            except requests.ConnectionError:
                return []

        eventually(shown, 60)
