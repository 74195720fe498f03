from pipeline.cli.option_names import OPTION_NAMES
from pipeline.cli.variables import settings_of
from tests.cli.commands import all_commands


def test_every_name_and_no_other():
    """The list has the names of all options that a profile can set."""
    assert {
        name for _, command in all_commands() for _, names in settings_of(command) for name in names
    } == OPTION_NAMES
