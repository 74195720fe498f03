"""The installed releases of Beam, of Google's clients and of uvicorn are those whose private parts were read."""

import ast
import re
from importlib.metadata import version
from pathlib import Path

import pytest

from pipeline import private_apis
from pipeline.private_apis import READ_IN

FOLDER = Path(private_apis.__file__).parent
OTHERS = sorted(
    path for path in FOLDER.parent.rglob("*.py") if FOLDER not in path.parents and not path.name.endswith("_pb2.py")
)
MODULES = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in ("__init__", "replace"))

PUBLIC_ALL_THE_SAME = {"_exit", "_replace", "_asdict", "_make", "_fields"}  # os._exit, and named tuples'


@pytest.mark.parametrize("read", READ_IN, ids=lambda read: f"{read.module}-{read.distribution}")
def test_installed_release(read):
    """A new release may have changed what a module relies on."""
    installed = version(read.distribution)
    assert installed == read.release, (
        f"{read.distribution} {installed} is installed, and pipeline/private_apis/{read.module}.py was written for "
        f"{read.release}: compare what its docstring names in both releases, adapt the module, "
        "then change the release in pipeline/private_apis/__init__.py"
    )


def test_every_module_is_listed():
    """Every module has a release for each library that it relies on, and its docstring names the files."""
    assert sorted({read.module for read in READ_IN}) == MODULES
    for module in MODULES:
        docstring = ast.get_docstring(ast.parse((FOLDER / f"{module}.py").read_text()))
        assert "Relies on, in ``" in docstring
        for read in READ_IN:
            if read.module == module:
                assert f"``{read.distribution}``" in docstring


def test_named_files_exist():
    """The files that the docstrings name are in the installed libraries."""
    root = Path(next(iter(__import__("apache_beam").__path__))).parent
    for module in MODULES:
        words = ast.get_docstring(ast.parse((FOLDER / f"{module}.py").read_text())).split()
        files = {word.rstrip(".,:;") for word in words if word.startswith(("apache_beam/", "google/", "uvicorn/"))}
        assert files
        for file in files:
            assert (root / file).is_file(), f"{module}.py names {file}"


def is_private(dotted):
    return any(part == "internal" or re.match(r"_(?!_)", part) for part in dotted.split("."))


def test_no_other_module_imports_private_names():
    """Nothing outside the package imports a private name or module of a library."""
    found = []
    for path in OTHERS:
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            found += [(path.name, name) for name in names if is_private(name) or name.startswith("unittest")]
    assert not found


def test_no_other_module_uses_private_attributes():
    """Outside the package, every private attribute that is used is one that our own code defines."""
    trees = {path: list(ast.walk(ast.parse(path.read_text()))) for path in OTHERS}
    nodes = [node for tree in trees.values() for node in tree]
    ours = {node.attr for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)}
    ours |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    ours |= {node.target.id for node in nodes if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}
    ours |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    foreign = {
        (path.name, node.attr)
        for path, tree in trees.items()
        for node in tree
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in ours | PUBLIC_ALL_THE_SAME
    }
    assert not foreign
