import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from pipeline.cli import extras, root

ROOT = Path(__file__).parent.parent.parent
# What the job, its launch and the workers of every job import.
IN_THE_IMAGE = (
    "pipeline.job.launch",
    "pipeline.transforms.write",
    "pipeline.backfill.run",
    "pipeline.repair.run",
    "pipeline.formats.avro_records",
    "pipeline.formats.parquet_records",
    "pipeline.cloud.reading.reader",
)


def run_without(packages, script):
    """Runs Python code in a process in which these packages are not installed."""
    absent = f"import sys; sys.modules.update(dict.fromkeys({list(packages)!r}))\n"
    return subprocess.run([sys.executable, "-c", absent + script], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("package", "arguments"), [("click", ["--help"]), ("rich", ["table", "--help"]), ("rich", ["read", "--help"])]
)
def test_a_missing_package(package, arguments):
    """The extra that has it is named in one line."""
    script = f"sys.argv[1:] = {arguments!r}\nfrom pipeline.cli.extras import main\nmain()"
    ran = run_without([package], script)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr == (
        f"tidetable: {package} is not installed; install the extra \"cli\" from the checkout: pip install '.[cli]'\n"
    )


@pytest.mark.parametrize("package", ["plotext", "matplotlib"])
def test_a_missing_package_that_a_command_loads_late(monkeypatch, package):
    """Charts are drawn when everything else is done; their extra is named too."""

    def draw():
        __import__(f"{package}.figure")

    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr(root, "main", draw)
    instructions = re.escape("install the extra \"charts\" from the checkout: pip install '.[charts]'")
    with pytest.raises(SystemExit, match=rf"^tidetable: {package} is not installed; {instructions}$"):
        extras.main()


def test_another_missing_module(monkeypatch):
    """A module that is in no extra is a bug, which is not hidden."""

    def broken():
        import no_such_module  # noqa: F401

    monkeypatch.setattr(root, "main", broken)
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        extras.main()


@pytest.mark.parametrize("missing", extras.EXTRAS)
def test_a_missing_package_is_reported_first(monkeypatch, missing):
    """A command does nothing before it knows that it can finish."""
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == missing else object())
    for extra in {*extras.EXTRAS.values()} - {extras.EXTRAS[missing]}:
        extras.check_installed(extra)
    with pytest.raises(ModuleNotFoundError) as raised:
        extras.check_installed(extras.EXTRAS[missing])
    assert raised.value.name == missing


def test_extras_are_those_of_the_project():
    """Every package of an extra that commands import is known, with its extra."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    packages = {
        re.match(r"[a-z-]+", requirement)[0].replace("-", "_"): extra
        for extra in ("beam", "cli", "charts", "serve")
        for requirement in declared[extra]
    }
    # Whoever lacks these lacks Beam, which is imported first.
    for package in ("google_cloud_dataflow_client", "numpy", "objsize"):
        assert packages.pop(package) == "beam"
    packages["grpc_tools"] = packages.pop("grpcio_tools")
    assert packages == extras.EXTRAS


def test_the_job_needs_only_beam():
    """Jobs are launched and run where no other extra is installed, as in the image. Beam needs sortedcontainers too."""
    script = "".join(f"import {module}\n" for module in IN_THE_IMAGE)
    ran = run_without([*(extras.EXTRAS.keys() - {"apache_beam", "grpc_tools", "sortedcontainers"}), "pandas"], script)
    assert ran.returncode == 0, ran.stderr
