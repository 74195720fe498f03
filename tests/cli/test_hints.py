import re
import shlex

import click
import pytest

from pipeline.cli.hints import EXAMPLES
from tests.cli.commands import all_commands, params


@pytest.mark.parametrize(("path", "command"), [pytest.param(*each, id=each[0]) for each in all_commands()])
def test_every_help_ends_with_an_example(path, command, tmp_path, monkeypatch):
    """The example can be pasted: it sets what it needs, and names this command, or one of this group."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "readings.csv").touch()
    (tmp_path / "rules.toml").touch()
    printed = click.Context(command, info_name=path).get_help().split("Example:\n")[-1]
    *exports, line = re.sub(r" \\\n +", " ", printed).strip().splitlines()
    environment = dict(re.findall(r"(\w+)=(\S+)", " ".join(exports)))
    assert line.strip().startswith(f"tidetable {path} ") or line.strip() == f"tidetable {path}"
    assert params(shlex.split(line)[1:], environment) is not None


def test_no_example_is_left_over():
    """Each example belongs to a command."""
    assert set(EXAMPLES) == {path for path, _ in all_commands()}
