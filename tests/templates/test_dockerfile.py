"""The image: linted, pinned, complete."""

import json
import re
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path

from tests.templates.dockerfile import DOCKERFILE, ROOT, environment, instructions, texts

REQUIREMENTS = (ROOT / "requirements.txt").read_text()


def test_lint():
    """Hadolint finds nothing, and nothing is hidden from it."""
    hadolint = Path(sys.executable).parent / "hadolint"
    linted = subprocess.run([hadolint, DOCKERFILE], capture_output=True, text=True, check=False)
    assert (linted.returncode, linted.stdout + linted.stderr) == (0, "")
    assert "hadolint" not in DOCKERFILE.read_text()
    assert not list(ROOT.glob(".hadolint.y*ml"))


def test_beam_is_the_pinned_one():
    """The workers' entry point is of the Beam version and the Python version that the image installs."""
    (pinned,) = re.findall(r"^apache-beam(?:\[.+\])?==([^ ]+)", REQUIREMENTS, re.MULTILINE)
    version = re.search(r"python:([\d.]+)-slim", texts("FROM")[-1])[1]
    assert f"apache/beam_python{version}_sdk:{pinned} AS beam" in texts("FROM")


def test_python_is_supported():
    """The image's Python is one that the package takes, and is final."""
    major, minor = map(int, re.fullmatch(r"python:(\d+)\.(\d+)-slim", texts("FROM")[-1]).groups())
    low, high = re.fullmatch(
        r">=3\.(\d+),<3\.(\d+)",
        tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"],
    ).groups()
    assert major == 3
    assert int(low) <= minor < int(high)


def test_every_base_is_pinned():
    """No base image is whatever is the latest today."""
    for base in texts("FROM"):
        image = base.split()[0]
        assert re.search(r":[^:/]+$", image), image
        assert not image.endswith(":latest")


def test_requirements_are_hashed():
    """Every install either checks hashes or takes nothing from an index, and conflicts end the build."""
    installs = [command for text in texts("RUN") for command in text.split(" && ") if " install " in command]
    assert installs == [
        "pip install --require-hashes -r requirements.txt",
        "pip install --no-deps --no-build-isolation .",
    ]
    assert texts("RUN")[-1].endswith("&& pip check")
    assert "--hash=sha256:" in REQUIREMENTS


def test_no_extra_is_installed():
    """The image has what jobs need: what only the command line, charts or frames need is not in it."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for requirement in chain(*extras.values()):
        assert not re.search(rf"^{re.match('[a-z]+', requirement)[0]}==", REQUIREMENTS, re.MULTILINE), requirement


def test_nothing_is_fetched_in_other_ways():
    """There is no download but pip's: no ADD, no curl, no apt."""
    assert not texts("ADD")
    assert not re.search(r"\b(curl|wget|apt-get|git)\b", " ".join(texts("RUN")))


def test_nothing_is_downloaded_at_launch():
    """The launcher is told of a file to run, and of nothing that it or Beam would fetch or stage."""
    named = {name for name in environment() if name.startswith("FLEX_TEMPLATE")}
    assert named == {"FLEX_TEMPLATE_PYTHON_PY_FILE"}


def test_the_launcher_runs_the_package():
    """The file that the launcher runs is the package's __main__, where no source shadows the installed package."""
    file = environment()["FLEX_TEMPLATE_PYTHON_PY_FILE"]
    assert f"pipeline/__main__.py {file}" in texts("COPY")
    folder = str(Path(file).parent)
    assert folder not in texts("WORKDIR")
    assert [text for text in texts("COPY") if folder in text.split()[-1]] == [f"pipeline/__main__.py {file}"]


def test_entry_points():
    """Both programs are where Dataflow looks for them: the workers' entry point and the launcher."""
    assert json.loads(texts("ENTRYPOINT")[-1]) == ["/opt/apache/beam/boot"]
    launcher = "/opt/google/dataflow/python_template_launcher"
    assert {"--from=beam /opt/apache/beam /opt/apache/beam", f"--from=launcher {launcher} {launcher}"} <= set(
        texts("COPY")
    )


def test_what_changes_often_comes_last():
    """A change of the pipeline's code does not install the requirements again."""
    kinds = [each for each in instructions() if each.keyword in ("COPY", "RUN")]
    heavy = next(at for at, each in enumerate(kinds) if "--require-hashes" in each.text)
    code = next(at for at, each in enumerate(kinds) if each.text.startswith("pipeline"))
    assert heavy < code


def test_the_builder_is_sent_what_is_copied():
    """The ignore file lets through everything that the Dockerfile copies from the repository, and no more."""
    copied = {
        source
        for text in texts("COPY")
        if not text.startswith("--from")
        for source in text.split()[:-1]
        if "/" not in source
    }
    lines = (ROOT / "templates/Dockerfile.dockerignore").read_text().splitlines()
    assert {line[1:] for line in lines if line.startswith("!")} == copied
    assert "*" in lines
