"""The house rules: style, types, import directions, generated code, pinned requirements."""

import ast
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from functools import cache
from importlib.metadata import distribution
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent


def run(*command):
    """Returns a tool's output; raises an AssertionError with it if the tool failed."""
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


def test_lint():
    """Ruff finds nothing, and would reformat nothing."""
    run(BIN / "ruff", "check", ".")
    run(BIN / "ruff", "format", "--check", ".")


def test_types():
    """Mypy finds nothing."""
    run(BIN / "mypy")


def test_import_directions():
    """Imports point one way, from the command line down to the core."""
    run(BIN / "lint-imports")


def test_workflows():
    """The workflows have the form that GitHub reads; zizmor finds nothing in them: rights, pins and expressions."""
    workflows = sorted((ROOT / ".github/workflows").iterdir())
    run(BIN / "check-jsonschema", "--builtin-schema", "vendor.github-workflows", *workflows)
    run(BIN / "check-jsonschema", "--builtin-schema", "vendor.dependabot", ".github/dependabot.yml")
    run(BIN / "zizmor", "--offline", "--no-progress", "--persona=auditor", ".github")


def test_proto_lint():
    """Buf finds nothing in the protobuf file."""
    run(BIN / "buf", "lint", "protos")


def test_generated_code_matches_protos(tmp_path):
    """The committed protobuf code is what the compiler generates from protos/."""
    run(
        sys.executable, "-m", "grpc_tools.protoc", "-Iprotos", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}",
        "tidetable/v1/sensor_event.proto", "tidetable/v1/window_result.proto",
    )  # fmt: skip
    compiled = sorted((tmp_path / "tidetable/v1").iterdir())
    names = [f"{name}_pb2.{suffix}" for name in ("sensor_event", "window_result") for suffix in ("py", "pyi")]
    assert [generated.name for generated in compiled] == names
    for generated in compiled:
        assert generated.read_text() == (ROOT / "pipeline/proto" / generated.name).read_text(), "run make protos"


@pytest.mark.parametrize("name", ["requirements.txt", "tests/requirements.txt"])
def test_requirements_are_pinned_and_hashed(name):
    """Every requirement has one version and hashes, and no index is set."""
    text = (ROOT / name).read_text()
    requirements = re.findall(r"^(?!#|\s)(.+?)(?: \\)?$", text, re.MULTILINE)
    assert requirements
    assert all(re.match(r"[a-z0-9-]+(\[.+\])?==[^ ]+", each) for each in requirements)
    assert text.count("--hash=sha256:") >= len(requirements)
    assert "://" not in text
    assert "--index" not in text


def test_the_tests_run_on_the_pinned_requirements():
    """tests/requirements.txt holds every pin of requirements.txt, so what is tested is what is installed."""
    pins = {
        name: set(re.findall(r"^([a-z0-9-]+==[^ ]+)", (ROOT / name).read_text(), re.MULTILINE))
        for name in ("requirements.txt", "tests/requirements.txt")
    }
    assert pins["requirements.txt"] <= pins["tests/requirements.txt"]


def test_every_dependency_is_in_the_requirements():
    """Every requirement in pyproject.toml has been compiled into the requirements."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    pinned = (ROOT / "tests/requirements.txt").read_text()
    groups = project["dependency-groups"]
    extras = project["project"]["optional-dependencies"].values()
    for requirement in [*project["project"]["dependencies"], *chain(*extras), *groups["dev"], *groups["build"]]:
        name = re.match(r"[A-Za-z0-9-]+", requirement)[0].lower()
        assert re.search(rf"^{name}(\[.+\])?==", pinned, re.MULTILINE), f"{requirement}: run make requirements"


def test_every_import_is_declared():
    """Each library that pipeline/ imports is declared as a dependency or in an extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = [*project["dependencies"], *chain(*project["optional-dependencies"].values())]
    files = {
        str(Path(file.locate()).resolve())
        for requirement in declared
        for file in distribution(re.match(r"[A-Za-z0-9-]+", requirement)[0]).files
    }
    undeclared = set()
    for _, node in nodes():
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module]
            if find_spec(node.module).origin is None:  # a namespace, like google.cloud
                names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            if name.partition(".")[0] not in (*sys.stdlib_module_names, "pipeline") and (
                str(Path(find_spec(name).origin).resolve()) not in files
            ):
                undeclared.add(name)
    assert not undeclared


@cache
def nodes():
    """Returns the nodes of all the package's syntax trees, with each module's path."""
    return [
        (str(path.relative_to(ROOT)), node)
        for path in (ROOT / "pipeline").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
    ]


def test_one_module_declares_the_columns_of_tables():
    """So none cuts an id on a narrow terminal: tests/cli/test_tables.py looks at what that module prints."""
    found = {place for place, node in nodes() if isinstance(node, ast.ImportFrom) and node.module == "rich.table"}
    assert found == {"pipeline/cli/tables.py"}


def test_no_test_module_is_a_library():
    """What several test modules share is in modules of its own: none imports from a module of tests."""
    borrowed = {
        str(path.relative_to(ROOT)): found
        for path in (ROOT / "tests").rglob("*.py")
        if (found := re.findall(r"^\s*from tests\.(?:\S+\.)?test_.*", path.read_text(), re.MULTILINE))
    }
    assert not borrowed


def test_class_names_are_unique():
    """No two classes of the package have the same name."""
    places = defaultdict(list)
    for path, node in nodes():
        if isinstance(node, ast.ClassDef):
            places[node.name].append(path)
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


BARE = "of|for|in|as|from|to|with|by|at|if|when|where|on|than|that|its|what|how|which"


def test_descriptions_of_arguments_are_noun_phrases():
    """No argument or attribute is described by a phrase that needs its name to be understood: none begins with "of"."""
    fragments = []
    for path, node in nodes():
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | ast.Module):
            text = ast.get_docstring(node) or ""
            for section in re.findall(r"^(?:Args|Attributes):\n((?: {4}.*\n?|\n)*)", text, re.MULTILINE):
                described = re.findall(rf"^ {{4}}([*\w`, ]+: (?:{BARE})\b.*)", section, re.MULTILINE | re.IGNORECASE)
                fragments += [f"{path}: {each}" for each in described]
    assert not fragments


def test_every_test_states_its_behaviour():
    """Each test function has a docstring."""
    silent = []
    for path in (ROOT / "tests").rglob("test_*.py"):
        module = ast.parse(path.read_text())
        for owner in (module, *(each for each in module.body if isinstance(each, ast.ClassDef))):
            silent += [
                f"{path}: {each.name}"
                for each in owner.body
                if isinstance(each, ast.FunctionDef) and each.name.startswith("test_") and not ast.get_docstring(each)
            ]
    assert not silent


def test_modules_are_short():
    """A module of more than 800 lines should be two modules."""
    long = {
        str(path.relative_to(ROOT)): length
        for path in (ROOT / "pipeline").rglob("*.py")
        if "_pb2" not in path.name and (length := len(path.read_text().splitlines())) > 800
    }
    assert not long


def test_make_setup_does_nothing_twice():
    """A complete set-up is left alone. It is only queried: running it would change the environment under the tests."""
    run("make", "--question", "setup")
