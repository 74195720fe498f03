"""The package itself: what it exports, and what its docstring lists."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tidetable_bigtable

import pipeline

ROOT = Path(pipeline.__file__).parent


def test_every_package_is_described():
    """One line for each folder and module, none for any other."""
    described = re.findall(r"^    (\w+) +\S", pipeline.__doc__, re.MULTILINE)
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    assert sorted(described) == sorted(folders | {path.stem for path in ROOT.glob("[!_]*.py")})


def test_every_name_of_the_api():
    """Each can be imported, as what a type checker takes it for."""
    imports = [
        node for node in ast.walk(ast.parse((ROOT / "__init__.py").read_text())) if isinstance(node, ast.ImportFrom)
    ]
    checked = {alias.name: node.module for node in imports for alias in node.names if node.module != "importlib"}
    assert sorted(checked) == pipeline.__all__
    for name, module in checked.items():
        assert getattr(pipeline, name) is getattr(__import__(module, fromlist=[name]), name)
    with pytest.raises(ImportError, match="cannot import name 'Sensor'"):
        from pipeline import Sensor  # noqa: F401


def test_an_import_of_the_package_imports_nothing_else():
    """So it works without any dependency, and costs next to nothing."""
    script = "import sys, pipeline; print([name for name in sys.modules if name.startswith(('pipeline.', 'google'))])"
    ran = subprocess.run([sys.executable, "-S", "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


@pytest.mark.parametrize("page", ["python-api.md", "message-decoders.md"])
def test_pages_import_from_the_package(page):
    """A program needs no name of a module inside."""
    imported = re.findall(
        r"^from ((?:pipeline|tidetable_bigtable)[\w.]*) import (.+)$",
        (ROOT.parent / "docs" / page).read_text(),
        re.MULTILINE,
    )
    names = {name for module, names in imported if module == "tidetable_bigtable" for name in names.split(", ")}
    assert names
    assert names <= {*tidetable_bigtable.__all__}
