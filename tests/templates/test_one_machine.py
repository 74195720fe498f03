"""The service of systemd, the image's health check and the Ops Agent's configuration."""

import configparser
import json
import os
import re
import shutil
import subprocess
import time
from datetime import datetime

import yaml

from pipeline import run as command
from pipeline.job import foreground, saying, status
from pipeline.job.saying import say
from tests.job.running import Resources, running_job
from tests.support.preloaded import TIDETABLE
from tests.templates.dockerfile import ROOT

FOLDER = ROOT / "templates/one-machine"
IMAGE = (ROOT / "templates/local.Dockerfile").read_text()
COMPOSE = ROOT / "templates/compose.yaml"


def service():
    parser = configparser.ConfigParser(strict=True, interpolation=None)
    parser.optionxform = str
    parser.read(FOLDER / "tidetable.service")
    return parser["Service"]


def seconds(text):
    number, unit = re.fullmatch(r"(\d+)(s|min)", text).groups()
    return int(number) * (60 if unit == "min" else 1)


def test_systemd_reads_the_service(tmp_path):
    """No key is unknown, none is named twice, and systemd, where it is installed, finds nothing to say."""
    assert service()["Type"] == "notify"
    if analyze := shutil.which("systemd-analyze"):
        unit = tmp_path / "tidetable.service"
        text = (FOLDER / "tidetable.service").read_text()
        unit.write_text(text.replace("/opt/tidetable/bin/tidetable", shutil.which("true")))
        verified = subprocess.run([analyze, "verify", unit], capture_output=True, text=True, check=False)
        assert (verified.returncode, verified.stdout, verified.stderr) == (0, "", "")


def test_the_service_is_confined():
    """The service has a user of its own, no capabilities, and no file system to write to."""
    hardened = {
        "DynamicUser": "yes", "ProtectSystem": "strict", "ProtectHome": "yes", "NoNewPrivileges": "yes",
        "CapabilityBoundingSet": "",
    }  # fmt: skip
    assert {name: service()[name] for name in hardened} == hardened


def test_the_service_lets_a_stop_end():
    """Systemd waits longer than a stop takes, starts a job that failed again, and ends one without progress."""
    found = service()
    assert seconds(found["TimeoutStopSec"]) > foreground._DRAIN_TIMEOUT_S + 10
    assert (found["Restart"], found["RestartPreventExitStatus"]) == ("on-failure", "2")
    assert seconds(found["WatchdogSec"]) > 600  # writers retry for so long


def test_the_variables_are_options():
    """Each variable of the service's environment is an option of the command, and none can be a secret."""
    names = {f"TIDETABLE_{option.name.upper()}" for option in command.run.params}
    names |= {f"TIDETABLE_{name[2:].upper()}" for option in command.run.params for name in option.opts}
    lines = [line for line in (FOLDER / "job.env").read_text().splitlines() if line and line[0] != "#"]
    assert {line.partition("=")[0] for line in lines} <= names
    assert "GOOGLE_APPLICATION_CREDENTIALS" not in "".join(lines)
    arguments = service()["ExecStart"].split()[2:]
    assert {each.partition("=")[0] for each in arguments} <= {opt for each in command.run.params for opt in each.opts}


def healthy(file):
    """Runs the image's check. Returns whether it passes."""
    (check,) = re.findall(r"^    CMD (\[.*\])$", IMAGE, re.MULTILINE)
    environment = os.environ | {"TIDETABLE_STATUS_FILE": str(file)}
    return subprocess.run(json.loads(check), env=environment, capture_output=True, check=False).returncode == 0


def test_the_image_is_healthy_while_a_job_makes_progress(pubsub, bigtable, tmp_path):
    """A job that runs is healthy, also without messages; after five minutes without progress, it is not."""
    file, resources = tmp_path / "status.json", Resources()
    assert not healthy(file)
    command_line = [*TIDETABLE, "run"]
    with running_job(resources.flags(), tmp_path / "log", {"TIDETABLE_STATUS_FILE": str(file)}, command_line):
        assert healthy(file)
    resources.close()
    os.utime(file, (time.time() - 310,) * 2)
    assert not healthy(file)


def test_a_container_comes_back():
    """A container starts again after a reboot, which on-failure does not do, and a stop has the time that it needs."""
    page = (ROOT / "docs/run-on-one-machine.md").read_text()
    (flags,) = re.findall(r"docker run --detach ([^`]*?) tidetable run", page)
    assert "--restart=unless-stopped " in flags
    assert int(re.search(r"--stop-timeout=(\d+)", flags)[1]) > foreground._DRAIN_TIMEOUT_S + 10


def test_a_job_sets_the_images_variable():
    """The file that the image's check reads is the one that a job of the image writes."""
    variable = re.search(r"^ENV (TIDETABLE_STATUS_FILE)=/tmp/", IMAGE, re.MULTILINE)[1]
    assert variable == "TIDETABLE_STATUS_FILE"
    options = [opt for each in command.run.params for opt in each.opts]
    assert "--" + variable.removeprefix("TIDETABLE_").lower().replace("_", "-") in options


def test_only_the_job_of_compose_is_checked():
    """Other commands write no status, so their containers are not checked."""
    services = yaml.safe_load(COMPOSE.read_text())["services"]
    ours = {name: each for name, each in services.items() if each["image"] == "tidetable-local"}
    assert [name for name, each in ours.items() if not each["healthcheck"]["disable"]] == ["job"]


def test_the_agent_reads_our_lines(monkeypatch, capsys):
    """The Ops Agent's configuration names the keys of our lines, and the form of their time."""
    monkeypatch.setattr(saying, "_as_json", True)
    say("hello")
    line = json.loads(capsys.readouterr().err)
    processors = yaml.safe_load((FOLDER / "ops-agent.yaml").read_text())["logging"]["processors"]
    form = processors["json"]["time_format"].replace("%L", "%f")
    assert datetime.strptime(line[processors["json"]["time_key"]], form)
    assert processors["severity"]["fields"]["severity"]["move_from"] == "jsonPayload.severity"
    assert "severity" in line
    assert status._LOG_S == 60
