import pytest

from pipeline.job.template_parameters import problems

INPUT = "input_subscription=projects/my-project/subscriptions/events"
TOPIC = "projects/my-project/topics/events"
TABLE = "bigtable_instance=my-instance bigtable_table=sensors"
VALID = f"{INPUT} {TABLE} dead_letters=drop"


def found(parameters, options=""):
    return problems(parameters.split(), options.split())


def test_a_valid_launch():
    """Parameters that the job accepts have no problems, with options of Beam beside them."""
    options = "number_of_worker_harness_threads=3 experiments=a enable_hot_key_logging max_cache_memory_usage_mb=0"
    assert found(f"{VALID} id_attribute=it's,a~key=*|x window=15m", options) == []


@pytest.mark.parametrize(
    ("parameters", "lines"),
    [
        (
            f"{INPUT} dead_letters=drop result_topic=projects/my-project/topics/results results=all",
            [
                "PARAMETERS: there is no parameter result_topic; did you mean results_topic?",
                "PARAMETERS: --bigtable-table is needed",
                "PARAMETERS: --bigtable-instance is needed",
            ],
        ),
        (f"{VALID} zzz=1", ["PARAMETERS: there is no parameter zzz"]),
        (f"{VALID} num_workers=3", ["PARAMETERS: there is no parameter num_workers; it belongs in PIPELINE_OPTIONS"]),
        (f"{VALID} window=1h window=2h", ["PARAMETERS: window is set twice"]),
        (
            f"{VALID} window window= =1h",
            [
                f"PARAMETERS has {word!r}; it must be name=value, separated by spaces"
                for word in ("window", "window=", "=1h")
            ],
        ),
        (TABLE, ["exactly one of --input-subscription and --input-topic is needed", "--dead-letter-topic is needed"]),
        (
            f"{INPUT} {TABLE} input_topic={TOPIC} dead_letter_topic={TOPIC}",
            ["exactly one of"],
        ),
        (
            f"{TABLE} input_topic={TOPIC} dead_letter_topic={TOPIC}",
            ["--dead-letter-topic is --input-topic: each dead letter would be read and refused again"],
        ),
        (
            f"{VALID} bigtable_table=a,a window=7h raw_family=stats results=all input_topic=x",
            [
                "bigtable_table is set twice",
                "--input-topic: topic 'x'",
                "--results=all needs",
                "--raw-family",
                "--window",
            ],
        ),
        (
            f"{VALID} message_mapping=, message_descriptors=gs://b/x",
            ["--message-mapping is ','; it has to be the path of a file"],
        ),
    ],
)
def test_problems_of_parameters(parameters, lines):
    """Each problem is one line, also the second and third, and none follows from another."""
    printed = found(parameters)
    assert len(printed) == len(lines), printed
    for line in lines:
        assert any(line in each for each in printed), printed


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ("num_wokers=3", "PIPELINE_OPTIONS: there is no option num_wokers; did you mean num_workers?"),
        ("window=1h", "PIPELINE_OPTIONS: there is no option window; it belongs in PARAMETERS"),
        ("help", "PIPELINE_OPTIONS: there is no option help"),
        ("num_workers=x", "PIPELINE_OPTIONS: argument --num_workers: invalid int value: 'x'"),
        (
            "temp_location=/tmp",
            "PIPELINE_OPTIONS: --temp-location is '/tmp'; it has to be a folder in a bucket, like gs://my-bucket/temp",
        ),
    ],
)
def test_problems_of_options(options, line):
    """An option that Beam does not have, or does not take, is refused: a launcher would ignore it."""
    assert line in found(VALID, options)[0]
