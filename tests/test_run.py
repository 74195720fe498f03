import pytest
from click.testing import CliRunner

from pipeline import run as command
from pipeline.cli.root import main
from pipeline.cloud.connection.names import TableName
from pipeline.job.settings import TidetableOptions, parse_flags, settings_of
from pipeline.private_apis.beam_flags import checked_flags

INPUT = ["--input-subscription", "projects/my-project/subscriptions/events", "--dead-letters", "drop"]
PROFILE = """
[profiles.default]
project = "my-project"
instance = "my-instance"
table = "sensors"
region = "europe-west4"

[profiles.default.run]
window = "15m"
"""


@pytest.fixture
def launched(monkeypatch):
    """Returns a function that runs a command line, and returns the flags that the job gets."""
    seen = []
    monkeypatch.setattr(command, "main", lambda argv, _: seen.append(argv) or 0)

    def run(*arguments, environment=None):
        ran = CliRunner().invoke(main, ["run", *arguments], env=environment)
        assert ran.exit_code == 0, ran.output
        return seen[-1]

    return run


def test_options_are_the_flags_of_the_job():
    """Each flag of the job is an option, in the order and the groups of its declaration; Beam's are flags of Beam."""
    here = [option for option in command.run.params if option.group == "On one machine"]
    flags = [option.flag for option in command.run.params if option.group != "Apache Beam" and option not in here]
    beams = [option.flag for option in command.run.params if option.group == "Apache Beam"]
    assert {flag.removeprefix("--") for flag in flags} == set(TidetableOptions([])._visible_option_list())
    assert not checked_flags([f"{flag}=1" for flag in beams], TidetableOptions, accept_own=False).unknown


def test_help_in_groups():
    """The help lists the options by what they are about, with their defaults."""
    output = CliRunner().invoke(main, ["run", "--help"], terminal_width=110).output
    titles = [line for line in output.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert titles == [
        "Input:", "Message types:", "Dead letters:", "Table:", "Windows:", "Results:", "Alerts:",
        "Writing and starting:", "On one machine:", "Apache Beam:", "Other:",
    ]  # fmt: skip
    assert "--bigtable-table, --table ID" in output
    assert "--early-firing DURATION" in output
    assert "[default: 60s]" in output


@pytest.mark.parametrize("spelling", [str, lambda flag: flag.replace("-", "_").replace("__", "--")])
def test_both_spellings(launched, spelling):
    """Flags of the job and of Beam have hyphens or underscores; values stay as they are."""
    words = [
        "--bigtable-table", "a-b", "--bigtable-table=c_d", "--temp-location=gs://my-bucket/a_b",
        "--worker-zone", "a-b_c", "--no-use-public-ips", "--experiments=my-own_one",
    ]  # fmt: skip
    argv = launched(*(spelling(word) if word.startswith("--") and "=" not in word else word for word in words))
    given = parse_flags(argv).get_all_options()
    assert given["bigtable_table"] == ["a-b", "c_d"]
    assert (given["temp_location"], given["worker_zone"]) == ("gs://my-bucket/a_b", "a-b_c")
    assert (given["use_public_ips"], given["experiments"]) == (False, ["my-own_one"])


def test_defaults_are_those_of_the_job(launched):
    """Without options, the job gets the settings that it has without flags."""
    flags = ["--project=my-project", "--bigtable_instance=i", "--bigtable_table=t", "--dead_letters=drop",
             "--input_topic=projects/my-project/topics/events"]  # fmt: skip
    assert settings_of(parse_flags(launched(*flags))) == settings_of(parse_flags(flags))


def test_variables_of_the_other_commands(launched):
    """What names the table for the other commands names it for the job; more flags may follow."""
    environment = {
        "TIDETABLE_PROJECT": "my-project", "TIDETABLE_INSTANCE": "my-instance", "TIDETABLE_TABLE": "a,b",
        "TIDETABLE_EARLY_FIRING": "5m", "TIDETABLE_DEAD_LETTERS": "no file",
    }  # fmt: skip
    settings = settings_of(parse_flags(launched(*INPUT, environment=environment)))
    assert settings.tables == tuple(TableName("my-project", "my-instance", table) for table in "ab")
    assert settings.early_firing.total_seconds() == 300
    environment["TIDETABLE_BIGTABLE_TABLE"] = "c"
    assert "--bigtable_table=c" in launched(*INPUT, environment=environment)
    assert "--bigtable_table=d" in launched(*INPUT, "--table", "d", environment=environment)


def test_a_profile_serves_the_job_too(launched, tmp_path):
    """The job takes the table and Beam's flags from the profile, and what only concerns it from its own part."""
    (tmp_path / "tidetable").mkdir()
    (tmp_path / "tidetable" / "config.toml").write_text(PROFILE)
    argv = launched(*INPUT, environment={"XDG_CONFIG_HOME": str(tmp_path)})
    settings = settings_of(parse_flags(argv))
    assert settings.tables == (TableName("my-project", "my-instance", "sensors"),)
    assert settings.declared.window.text == "15m"
    assert "--region=europe-west4" in argv


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--project=my-project"], "exactly one of --input-subscription and --input-topic is needed"),
        (["--bigtable-tabel=t"], "unknown argument --bigtable_tabel=t; did you mean --bigtable-table?"),
        (["sensors"], "unknown argument sensors"),
    ],
)
def test_wrong_usage(arguments, message):
    """The job itself checks its flags: one line, and its exit code."""
    ran = CliRunner().invoke(main, ["run", *arguments])
    assert (ran.exit_code, ran.stdout) == (2, "")
    assert ran.stderr == f"tidetable: {message}\n"
