"""The template's parameters are the job's flags, and Google refuses what the job would refuse."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.job.flags import BadFlag
from pipeline.job.settings import parse_flags, settings_of

ROOT = Path(__file__).parent.parent.parent
METADATA = json.loads((ROOT / "templates/metadata.json").read_text())
PARAMETERS = {each["name"]: each for each in METADATA["parameters"]}

# Complete command lines; together they can omit every optional flag.
READS_SUBSCRIPTION = {
    "runner": "DataflowRunner",
    "project": "test-project",
    "input_subscription": "projects/test-project/subscriptions/events",
    "dead_letter_topic": "projects/test-project/topics/dead-letters",
    "bigtable_instance": "instance",
    "bigtable_table": "table",
}
READS_TOPIC = {name: value for name, value in READS_SUBSCRIPTION.items() if name != "input_subscription"} | {
    "input_topic": "projects/test-project/topics/events"
}
DROPS = {name: value for name, value in READS_SUBSCRIPTION.items() if name != "dead_letter_topic"} | {
    "dead_letters": "drop"
}

PROJECTS = ["abcdef", "my-project-1", "example.com:my-project", "a" + "b" * 62]
BAD_PROJECTS = ["abcde", "My-project", "1project", "my-project-", "my_project", "a" + "b" * 63, "my project", "pröject"]
NAMES = ["abc", "go1", "goo", "gxx", "gog", "goof", "Goog", "GOOGLE", "a.b_c~d%e+f-g", "a" * 255, "goo" + "x" * 252]
BAD_NAMES = ["", "ab", "1abc", "-abc", "a" * 256, "a b c", "a/b", "äbc", "abc\n"]
ATTRIBUTES = ["e", "g", "event_time", "x-goog", "a,b=c~d|e", "a" * 256]
BAD_ATTRIBUTES = ["", "a b", "a\t", "zeit_ü", "a" * 257, "g" * 257]
DURATIONS = ["90s", "15m", "1h", "1d", "007h", "999999999s"]
BAD_DURATIONS = ["", "1", "00", "-1s", "1.5h", "1w", "1H", "h", " 1h", "1h ", "1h30m", "1000000000s", "١h"]
FILES = ["gs://my-bucket/a b.toml", "projects/my-project/schemas/report", "a,gs://b/c", "/template/x"]
BAD_FILES = ["", ",", "a,", ",a", "a,,b"]
FAMILIES = ["cf", "f_1.2-3", "a" * 64, "-", "0"]
BAD_FAMILIES = ["", "a b", "a/b", "a:b", "a" * 65, "ä"]


def resources(kind, names=NAMES):
    return [f"projects/test-project/{kind}/{name}" for name in names]


def bad_resources(kind):
    wrong = [f"{project}/{kind}/abc" for project in ("projects/Test", "projects/", "test-project", "/projects/abcdef")]
    other = "topics" if kind == "subscriptions" else "subscriptions"
    return [*resources(kind, BAD_NAMES), *resources(other, ["abc"]), *wrong, "abc", "", f"projects/abcdef/{kind}/abc/d"]


GOOD = {
    "input_subscription": resources("subscriptions") + [f"projects/{each}/subscriptions/abc" for each in PROJECTS],
    "input_topic": resources("topics"),
    "timestamp_attribute": ATTRIBUTES,
    "id_attribute": ATTRIBUTES,
    "message_mapping": FILES,
    "message_descriptors": FILES,
    "message_decoder": ["a:b", "acme.messages_2:decode", "_a._b:_c"],
    "default_message_type": ["json", "Report", "acme.v1.Report"],
    "unknown_fields": ["count", "refuse"],
    "dead_letters": ["publish", "drop"],
    "dead_letter_topic": resources("topics"),
    "alerts_topic": resources("topics"),
    "results_topic": resources("topics"),
    "results": ["final", "all"],
    "results_encoding": ["protobuf", "json"],
    "bigtable_project": PROJECTS,
    "bigtable_instance": ["a", "my-instance-1", "a" * 33],
    "bigtable_table": ["t", "_t", "0", "Sensors-1.2_3", "a" * 50, "a,b", f"{'a' * 50},{'b' * 50},c"],
    "schema": ["default"],
    "window": ["1s", "15m", "1h", "6h", "24h", "1d", "86400s", "01h"],
    "early_firing": ["0", *DURATIONS],
    "late_firing": ["0", *DURATIONS],
    "newest_every": ["0", *DURATIONS],
    "allowed_lateness": ["0", *DURATIONS, "5000d"],
    "max_future": ["0", *DURATIONS],
    "bigtable_writer": ["connector", "bulk"],
    "app_profile": ["a", "batch-writes", "_x.Y-9", "a" * 50],
    "raw_family": FAMILIES,
    "stats_family": FAMILIES,
    "meta_family": FAMILIES,
    "launch_checks": ["on", "off"],
}
BAD = {
    "input_subscription": bad_resources("subscriptions"),
    "input_topic": bad_resources("topics"),
    "timestamp_attribute": BAD_ATTRIBUTES,
    "id_attribute": BAD_ATTRIBUTES,
    "message_mapping": BAD_FILES,
    "message_descriptors": BAD_FILES,
    "message_decoder": ["", "a", "a.b", "a:", ":b", "a:b:c", "a:b()", "a/b.py:c", "1:a"],
    "default_message_type": ["", "acme/Report", "1a", "a b", ".a"],
    "unknown_fields": ["", "Count", "ignore", "countrefuse"],
    "dead_letters": ["", "keep", "Publish", "publishdrop"],
    "dead_letter_topic": bad_resources("topics"),
    "alerts_topic": bad_resources("topics"),
    "results_topic": bad_resources("topics"),
    "results": ["", "Final", "early", "finalall"],
    "results_encoding": ["", "JSON", "avro", "protobufjson"],
    "bigtable_project": BAD_PROJECTS,
    "bigtable_instance": ["", "Instance", "1a", "-a", "a" * 34, "a_b", "a/b"],
    "bigtable_table": ["", ".t", "-t", "a b", "a/b", "a" * 51, "tä", ",", "a,", ",a", "a,,b", "a, b", f"b,{'a' * 51}"],
    "schema": ["", "Default", "defaults", "schema.toml"],
    "window": ["0", *BAD_DURATIONS],
    "early_firing": BAD_DURATIONS,
    "late_firing": BAD_DURATIONS,
    "newest_every": BAD_DURATIONS,
    "allowed_lateness": BAD_DURATIONS,
    "max_future": BAD_DURATIONS,
    "bigtable_writer": ["", "Bulk", "java", "connectorbulk"],
    "app_profile": ["", "-a", "a" * 51, "a b", "a/b", "ä"],
    "raw_family": BAD_FAMILIES,
    "stats_family": BAD_FAMILIES,
    "meta_family": BAD_FAMILIES,
    "launch_checks": ["", "On", "yes", "onoff", "true"],
}


# No reasonable regular expression can check this; the job refuses it at launch.
BEYOND_REGEXES = {
    "window": ["7h", "0s", "100m", "2d", "7s"],  # must divide a day
    "bigtable_table": ["a,a", "a,b,a"],  # no duplicates
    "raw_family": ["stats", "meta", "tidetable"],  # the three must differ, and none may be the table's own
    "stats_family": ["raw", "meta"],
    "meta_family": ["raw", "stats"],
}


def command_line(name=None, value=None):
    """Returns a complete command line in which one flag has the given value."""
    base = READS_TOPIC if name == "input_topic" else READS_SUBSCRIPTION
    if name == "message_descriptors":
        base = base | {"message_mapping": "gs://my-bucket/report.toml"}
    if name in ("results", "results_encoding"):
        base = base | {"results_topic": "projects/test-project/topics/results"}
    return [f"--{flag}={declared}" for flag, declared in (base | ({name: value} if name else {})).items()]


def accepts(arguments):
    """Returns whether the job would start with these flags."""
    try:
        settings_of(parse_flags(arguments))
    except BadFlag:
        return False
    return True


def matches(name, value):
    """Returns whether Google would accept the value: every regex matches all of it."""
    return all(re.fullmatch(regex, value) for regex in PARAMETERS[name]["regexes"])


def test_the_file_is_what_the_flags_declare():
    """The script that writes the file has nothing to change."""
    made = subprocess.run(
        [sys.executable, "templates/generate_metadata.py"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert made.stdout == (ROOT / "templates/metadata.json").read_text(), "run templates/generate_metadata.py"


@pytest.mark.parametrize("name", PARAMETERS)
def test_optional(name):
    """A parameter is optional exactly if some job can omit its flag."""
    without = [
        [f"--{flag}={value}" for flag, value in line.items() if flag != name]
        for line in (READS_SUBSCRIPTION, READS_TOPIC, DROPS)
    ]
    assert PARAMETERS[name]["isOptional"] == any(accepts(arguments) for arguments in without)


@pytest.mark.parametrize("name", PARAMETERS)
def test_the_regex_and_the_pipeline_agree(name):
    """The regex admits a value exactly if the job accepts it."""
    assert PARAMETERS[name]["regexes"]
    for values, good in ((GOOD[name], True), (BAD[name], False)):
        for value in values:
            assert matches(name, value) is good, value
            assert accepts(command_line(name, value)) is good, value


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, each in BEYOND_REGEXES.items() for value in each])
def test_beyond_regexes(name, value):
    """What a regex can't check is refused by the job's launch."""
    assert matches(name, value)
    assert not accepts(command_line(name, value))


@pytest.mark.parametrize("name", PARAMETERS)
def test_regexes_are_portable(name):
    """Regexes mean the same in POSIX, RE2 and Python: anchored, simple groups, no escapes, no lookaround."""
    for regex in PARAMETERS[name]["regexes"]:
        re.compile(regex)
        assert regex.startswith("^")
        assert regex.endswith("$")
        assert "(?" not in regex
        assert "\\" not in regex
        assert "[[" not in regex
        assert not re.search(r"[*+?}][?+]", re.sub(r"\[[^\]]*\]", "x", regex)), "lazy or possessive"
        assert all(int(count) <= 255 for count in re.findall(r"(\d+)\}", regex)), "POSIX repeats 255 times at most"
        # An alternative at the top level would separate the anchors.
        body = regex[1:-1]
        while (inner := re.sub(r"\[[^\]]*\]|\([^()[\]]*\)", "x", body)) != body:
            body = inner
        assert "|" not in body


@pytest.mark.parametrize("name", PARAMETERS)
def test_texts_for_the_console(name):
    """Each parameter has a label, a help text of whole sentences, a valid type and a place in a group."""
    parameter = PARAMETERS[name]
    assert parameter["label"]
    assert parameter["helpText"].endswith(".")
    assert parameter["paramType"] in {"TEXT", "ENUM", "PUBSUB_TOPIC", "PUBSUB_SUBSCRIPTION"}
    if name.endswith(("_topic", "_subscription")):
        assert parameter["paramType"] == f"PUBSUB_{name.rsplit('_', 1)[1].upper()}"
    assert ("groupName" in parameter) != ("parentName" in parameter)
    if "parentName" in parameter:
        assert set(parameter["parentTriggerValues"]) <= set(GOOD[parameter["parentName"]])


@pytest.fixture(scope="module")
def spec(gcloud):
    """The template's spec as the real gcloud makes it of the metadata, with the options of ``flex.sh``."""
    printed = subprocess.run(
        shlex.split(
            f"{gcloud} dataflow flex-template build gs://bucket/spec.json --image=image --project=test-project "
            "--sdk-language=PYTHON --metadata-file=templates/metadata.json --enable-streaming-engine "
            "--staging-location=gs://bucket/staging --temp-location=gs://bucket/temp "
            "--worker-machine-type=n2-standard-2 --max-workers=5 --print-only '--format=value(.)'"
        ),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(printed.stdout)


def test_gcloud_accepts_every_parameter(spec):
    """Gcloud accepts and keeps every field of every parameter."""
    assert spec["metadata"]["parameters"] == METADATA["parameters"]
    assert spec["sdkInfo"] == {"language": "PYTHON"}


def completed(spec, tmp_path):
    """The spec as ``flex.sh`` publishes it."""
    file = tmp_path / "spec.json"
    file.write_text(json.dumps(spec))
    subprocess.run(["python3", "templates/complete_spec.py", file, "templates/metadata.json"], cwd=ROOT, check=True)
    return json.loads(file.read_text())


def test_the_published_spec_has_all_of_the_metadata(spec, tmp_path):
    """What gcloud leaves out is put back, and what it made stays."""
    published = completed(spec, tmp_path)
    assert published["metadata"] == METADATA
    assert {key: published[key] for key in spec if key not in ("metadata", "defaultEnvironment")} == {
        key: spec[key] for key in spec if key not in ("metadata", "defaultEnvironment")
    }
    assert spec["defaultEnvironment"].items() <= published["defaultEnvironment"].items()


def test_the_published_spec_has_what_terraform_leaves_to_it(spec, tmp_path):
    """Locations, machine type and most workers are defaults of every launch: Terraform can't set them."""
    assert completed(spec, tmp_path)["defaultEnvironment"] == {
        "enableStreamingEngine": True,
        "machineType": "n2-standard-2",
        "maxWorkers": 5,
        "sdkContainerImage": "image",
        "stagingLocation": "gs://bucket/staging",
        "tempLocation": "gs://bucket/temp",
    }


def test_workers_run_the_image_of_the_launcher(spec, tmp_path):
    """A launch that does not name an image, like one from the console, has the template's own for the workers."""
    assert completed(spec, tmp_path)["defaultEnvironment"]["sdkContainerImage"] == spec["image"]
    bare = {key: value for key, value in spec.items() if key != "defaultEnvironment"}
    assert completed(bare, tmp_path)["defaultEnvironment"] == {"sdkContainerImage": spec["image"]}
