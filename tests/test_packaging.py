"""The wheel: what it contains, and what works where only it and an extra's requirements are installed."""

import json
import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from email.parser import HeaderParser
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from pipeline import __version__
from pipeline.cloud.tables import tables
from pipeline.core.events.event import Event
from pipeline.core.notation.times import parse_time
from pipeline.core.schema.table_schema import TableSchema
from tests.support.lasting import lasting
from tests.support.linking import link
from tests.support.tables import raw_row, unused_name, write

ROOT = Path(__file__).parent.parent
TABLE = ["--project=my-project", "--instance=i", "--table=t"]
SINCE = ["--from=2026-02-17", "--to=2026-02-18"]
NEWEST = {"sensor_id": "s", "event_time": "2026-02-17T10:30:00Z", "readings": {"t": 21.5}, "metadata": {}}


def run(*command, cwd="/", **variables):
    """Runs a command without the variables that add folders to an environment or hand down make's options."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not re.fullmatch(r"PYTHONPATH|VIRTUAL_ENV|MAKE.*|MFLAGS", name)
    }
    return subprocess.run(command, cwd=cwd, env=inherited | variables, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel that ``make wheel`` builds, without an index, from a copy of the sources."""
    folder = tmp_path_factory.mktemp("sources")
    for name in ("Makefile", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "pipeline", folder / "pipeline", ignore=shutil.ignore_patterns("__pycache__"))
    removed = folder / "build/lib/pipeline/removed.py"  # left by an earlier build
    removed.parent.mkdir(parents=True)
    removed.touch()
    # This environment is complete; make must not look at its age.
    make = ["make", "wheel", f"VENV={sys.prefix}", f"--old-file={sys.prefix}/.complete"]
    made = run(*make, cwd=folder, PIP_NO_INDEX="1")
    assert made.returncode == 0, made.stdout + made.stderr
    (built,) = (folder / "dist").iterdir()
    return built


class Installed:
    """An environment with the wheel and what it requires with some extras, as installed here; nothing else."""

    def __init__(self, folder, wheel, *extras):
        venv.create(folder)
        self._bin = folder / "bin"
        (packages,) = folder.glob("lib/python*/site-packages")
        pip = [sys.executable, "-m", "pip", "--python", self._bin / "python", "install", "--no-index", "--no-deps"]
        pip.append("--no-compile")  # most modules are not imported here
        installed = run(*pip, wheel)
        assert installed.returncode == 0, installed.stderr
        for name in _required(_metadata(wheel).get_all("Requires-Dist"), frozenset(extras)):
            link(distribution(name), packages)

    def python(self, *arguments):
        return run(self._bin / "python", *arguments)

    def tidetable(self, *arguments, **how):
        return run(self._bin / "tidetable", *arguments, **how)


@pytest.fixture(scope="module")
def with_frames(wheel, tmp_path_factory):
    return Installed(tmp_path_factory.mktemp("frames"), wheel, "frames")


@pytest.fixture(scope="module")
def with_commands(wheel, tmp_path_factory):
    return Installed(tmp_path_factory.mktemp("cli"), wheel, "cli")


@pytest.fixture(scope="module")
def with_beam(wheel, tmp_path_factory):
    return Installed(tmp_path_factory.mktemp("beam"), wheel, "beam", "charts", "cli")


@pytest.fixture(scope="module")
def table(bigtable):
    """A table with one event."""
    name = unused_name()
    tables.create(name, lasting(TableSchema.default()))
    write(name, [raw_row(Event("s", parse_time(NEWEST["event_time"]), NEWEST["readings"], {}))])
    return name


def _metadata(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (path,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return HeaderParser().parsestr(archive.read(path).decode())


def _required(requirements, extras):
    """Returns the names of all distributions that the requirements need; checks that each has a version that fits."""
    seen, todo = set(), [(requirements, extras)]
    while todo:
        requirements, extras = todo.pop()
        for requirement in map(Requirement, requirements or ()):
            marker = requirement.marker
            if marker and not any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
                continue
            key = canonicalize_name(requirement.name), frozenset(requirement.extras)
            if key not in seen:
                found = distribution(requirement.name)
                assert requirement.specifier.contains(found.version, prereleases=True), requirement
                seen.add(key)
                todo.append((found.requires, requirement.extras))
    return {name for name, _ in seen}


def test_the_name_is_ours(wheel):
    """The index has a "tidetable" of somebody else's; the documentation installs this wheel."""
    assert _metadata(wheel)["Name"] == "tidetable-bigtable"
    assert f"dist/{wheel.name}[frames]" in (ROOT / "docs/python-api.md").read_text()


def test_the_wheel_has_the_package_and_its_types(wheel):
    """The wheel has every module, the mark that they are typed, the page's files, and nothing else."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    sources = {path for suffix in ("py", "pyi", "typed") for path in (ROOT / "pipeline").rglob(f"*.{suffix}")}
    sources |= {path for path in (ROOT / "pipeline/serve/static").rglob("*") if path.is_file()}
    assert names == {str(path.relative_to(ROOT)).removeprefix("pipeline/public/") for path in sources}
    assert "pipeline/py.typed" in names


def test_the_reader_without_beam_or_a_command_line(with_frames, table):
    """The base and the extra ``frames`` read a table into pandas."""
    script = f"""
import importlib.util
from tidetable_bigtable import RawRecord, SensorTable, TableSchema, parse_schema
assert parse_schema("latest = false") == TableSchema.default()
assert not any(map(importlib.util.find_spec, ["apache_beam", "click", "rich", "pytest"]))
with SensorTable.open({table.project!r}, {table.instance!r}, {table.table!r}) as table:
    frame = table.events("s", 0, 2_000_000_000_000_000).to_pandas()
print(frame["t"].tolist(), frame["event_time"].tolist())
"""
    ran = with_frames.python("-c", script)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == "[21.5] [Timestamp('2026-02-17 10:30:00+0000', tz='UTC')]\n"


def test_the_base_is_complete(with_frames):
    """The requirements of the base are all that the clients, the file formats and the core import."""
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for package in ("cloud", "core", "formats", "proto")
        for path in (ROOT / "pipeline" / package).rglob("*.py")
        if path.stem != "__init__"
    ]
    ran = with_frames.python("-c", "".join(f"import {module}\n" for module in modules))
    assert ran.returncode == 0, ran.stderr


def test_the_command_line_without_beam(with_commands, table):
    """The commands that run no pipeline do not need Beam."""
    version = with_commands.tidetable("--version")
    assert (version.returncode, version.stdout) == (0, f"tidetable, version {__version__}\n")
    arguments = [
        f"--project={table.project}",
        f"--instance={table.instance}",
        f"--table={table.table}",
        "--format=json",
    ]
    latest = with_commands.tidetable("read", "latest-events", "s", *arguments)
    assert (latest.returncode, latest.stderr) == (0, "")
    assert json.loads(latest.stdout) == NEWEST


@pytest.mark.exhaustive
def test_the_demo_without_googles_emulators(with_beam, tmp_path):
    """The wheel's demo runs where no Cloud SDK, Docker or Java is found: the built-in emulator is in the wheel."""
    nothing = {"PATH": str(tmp_path), "PUBSUB_EMULATOR_HOST": "", "BIGTABLE_EMULATOR_HOST": ""}
    ran = with_beam.tidetable("demo", "--sensor-count=3", cwd=tmp_path, **nothing)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "no Google emulator found: using the built-in one" in ran.stdout + ran.stderr
    assert "Every raw row, every aggregate and every roll-up equals an independent computation" in ran.stdout
    assert (tmp_path / "demo.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    "command",
    [
        ["tidetable", "backfill", "readings.csv", *TABLE],
        ["tidetable", "demo"],
        ["tidetable", "repair", *SINCE, *TABLE],
        ["python", "-m", "pipeline", "--project=my-project"],
    ],
    ids=lambda command: " ".join(command[:3]),
)
def test_a_command_that_needs_beam(with_commands, command):
    """A command that runs a pipeline names the extra in one line, and does nothing else."""
    program, *arguments = command
    ran = getattr(with_commands, program)(*arguments)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == (
        "tidetable: apache_beam is not installed; install the extra \"beam\" from the checkout: pip install '.[beam]'\n"
    )
