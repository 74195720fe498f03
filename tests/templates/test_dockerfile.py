"""The image: linted, pinned, complete."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.templates.dockerfile import DOCKERFILE, ROOT, environment, instructions, texts

REQUIREMENTS = (ROOT / "requirements.txt").read_text()


def test_lint():
    """Hadolint finds nothing, and no rule is disabled."""
    hadolint = Path(sys.executable).parent / "hadolint"
    linted = subprocess.run([hadolint, DOCKERFILE], capture_output=True, text=True, check=False)
    assert (linted.returncode, linted.stdout + linted.stderr) == (0, "")
    assert "hadolint" not in DOCKERFILE.read_text()
    assert not list(ROOT.glob(".hadolint.y*ml"))


def test_beam_and_python_match_the_base_image():
    """The workers' entry point has the versions of Beam and Python that the image installs."""
    (pinned,) = re.findall(r"^apache-beam(?:\[.+\])?==([^ ]+)", REQUIREMENTS, re.MULTILINE)
    version = re.search(r"python:([\d.]+)-slim", texts("FROM")[-1])[1]
    assert f"apache/beam_python{version}_sdk:{pinned} AS beam" in texts("FROM")


def test_python_is_supported():
    """The package supports the image's Python, which is a final release."""
    major, minor = map(int, re.fullmatch(r"python:(\d+)\.(\d+)-slim", texts("FROM")[-1]).groups())
    low, high = re.fullmatch(
        r">=3\.(\d+),<3\.(\d+)",
        tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"],
    ).groups()
    assert major == 3
    assert int(low) <= minor < int(high)


def test_every_base_is_pinned():
    """Every base image is pinned, never the latest."""
    for base in texts("FROM"):
        image = base.split()[0]
        assert re.search(r":[^:/]+$", image), image
        assert not image.endswith(":latest")


def test_the_launcher_is_recent():
    """The launcher is not older than 2024; its tag begins with the date."""
    (date,) = re.findall(r"-template-launcher-base:(\d{8})-rc\d\d AS launcher", "\n".join(texts("FROM")))
    assert date >= "20240101"


def test_requirements_are_hashed():
    """Every install either checks hashes or uses no index, and conflicts fail the build."""
    installs = [command for text in texts("RUN") for command in text.split(" && ") if " install " in command]
    assert installs == [
        "pip install --no-deps --require-hashes -r requirements.txt",
        "pip install --no-deps --no-build-isolation .",
    ]
    assert texts("RUN")[-1].endswith("&& pip check")
    assert "--hash=sha256:" in REQUIREMENTS


def test_beam_is_the_only_extra():
    """The image contains what jobs need, not what only the command line, charts or frames need."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra, requirements in extras.items():
        for requirement in requirements:
            name = re.match("[a-z-]+", requirement)[0]
            pinned = re.search(rf"^{name}(\[.+\])?==", REQUIREMENTS, re.MULTILINE)
            in_image = extra == "beam" or name in ("pydantic", "sortedcontainers")  # which Beam needs, too
            assert bool(pinned) == in_image, requirement


def test_nothing_is_fetched_in_other_ways():
    """Only pip downloads anything: there is no ADD, curl or apt."""
    assert not texts("ADD")
    assert not re.search(r"\b(curl|wget|apt-get|git)\b", " ".join(texts("RUN")))


def test_nothing_is_downloaded_at_launch():
    """The launcher gets a file to run, and no setting that makes it or Beam download or stage packages."""
    named = {name for name in environment() if name.startswith("FLEX_TEMPLATE")}
    assert named == {"FLEX_TEMPLATE_PYTHON_PY_FILE"}


def test_the_launcher_runs_the_package():
    """The launcher runs the package's __main__, in a folder where no source shadows the installed package."""
    file = environment()["FLEX_TEMPLATE_PYTHON_PY_FILE"]
    assert f"pipeline/__main__.py {file}" in texts("COPY")
    folder = str(Path(file).parent)
    assert folder not in texts("WORKDIR")
    assert [text for text in texts("COPY") if folder in text.split()[-1]] == [f"pipeline/__main__.py {file}"]


def test_entry_points():
    """Both entry points are where Dataflow expects them: the workers' and the launcher."""
    assert json.loads(texts("ENTRYPOINT")[-1]) == ["/opt/apache/beam/boot"]
    launcher = "/opt/google/dataflow/python_template_launcher"
    assert {"--from=beam /opt/apache/beam /opt/apache/beam", f"--from=launcher {launcher} {launcher}"} <= set(
        texts("COPY")
    )


def test_code_is_copied_last():
    """A change of the pipeline's code does not reinstall the requirements."""
    kinds = [each for each in instructions() if each.keyword in ("COPY", "RUN")]
    heavy = next(at for at, each in enumerate(kinds) if "--require-hashes" in each.text)
    code = next(at for at, each in enumerate(kinds) if each.text.startswith("pipeline"))
    assert heavy < code


def test_the_build_context():
    """The ignore file admits exactly what the Dockerfile copies from the repository."""
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
