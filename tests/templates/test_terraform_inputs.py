"""What exists already: Terraform computes names and grants, and refuses what contradicts itself."""

import json
import shutil
import subprocess

import pytest

from tests.templates.hcl import RESOURCES, TERRAFORM

PLACE = {"project": "my-project", "region": "europe-west4", "clusters": {"cluster-a": {"zone": "europe-west4-a"}}}
TOPIC = "projects/other-project/topics/readings"
SUBSCRIPTION = "projects/other-project/subscriptions/from-the-field"
SCHEMA = {"name": "projects/other-project/schemas/reading", "encoding": "JSON"}
COMPUTED = {
    "subscriptions": "local.subscriptions",
    "topics": "local.topics",
    "monitored": "local.monitored",
    "roles_on_subscriptions": RESOURCES["google_pubsub_subscription_iam_member", "subscriber"]["for_each"],
    "roles_on_topics": RESOURCES["google_pubsub_topic_iam_member", "tracking_subscription"]["for_each"],
    "roles_elsewhere": RESOURCES["google_project_iam_custom_role", "tracking_elsewhere"]["for_each"],
    "new_subscriptions": RESOURCES["google_pubsub_subscription", "input"]["for_each"],
    "new_topics": RESOURCES["google_pubsub_topic", "input"]["for_each"],
    "new_schemas": RESOURCES["google_pubsub_schema", "sensor_event"]["count"],
    "readers": RESOURCES["google_bigtable_table_iam_member", "reader"]["for_each"],
}


class Terraform:
    """Plans the module's variables, and values computed of them, without the resources of any provider."""

    def __init__(self, program, folder):
        self._program = program
        self._folder = folder / "module"
        self._folder.mkdir()
        (folder / "monitoring").symlink_to(TERRAFORM.parent / "monitoring")
        for name in ("variables.tf", "inputs.tf"):
            shutil.copy(TERRAFORM / name, self._folder)
        monitoring = (TERRAFORM / "monitoring.tf").read_text().partition("\nresource ")[0]
        expressions = {name: value.removeprefix("${").removesuffix("}") for name, value in COMPUTED.items()}
        outputs = [f'output "{name}" {{\n  value = {value}\n}}\n' for name, value in expressions.items()]
        (self._folder / "outputs.tf").write_text("".join([monitoring, *outputs]))
        assert self._run("init").returncode == 0

    def _run(self, *arguments):
        return subprocess.run(
            [self._program, *arguments], cwd=self._folder, capture_output=True, text=True, check=False
        )

    def planned(self, **variables):
        """Returns the computed values, or what Terraform says if it refuses the variables, on one line."""
        (self._folder / "terraform.tfvars.json").write_text(json.dumps(PLACE | variables))
        plan = self._run("plan", "-input=false", "-no-color", "-out=plan")
        if plan.returncode:
            return " ".join(plan.stderr.split())
        shown = json.loads(self._run("show", "-json", "plan").stdout)["planned_values"]["outputs"]
        return {name: each.get("value") for name, each in shown.items()}


@pytest.fixture(scope="module")
def terraform(tmp_path_factory):
    """Terraform; skips what it has to compute where it is not installed."""
    program = shutil.which("terraform") or pytest.skip("terraform is not installed")
    return Terraform(program, tmp_path_factory.mktemp("terraform"))


def test_everything_is_new_by_default(terraform):
    """Without anything that exists, the module makes topic, schema and subscription, and grants roles on these."""
    made = terraform.planned(timestamp_attribute="event_time")
    subscription = {"events": "projects/my-project/subscriptions/tidetable-events"}
    topic = {"events": "projects/my-project/topics/tidetable-events"}
    assert made["subscriptions"] == made["roles_on_subscriptions"] == subscription
    assert made["topics"] == made["roles_on_topics"] == topic
    assert (made["new_topics"], made["new_subscriptions"], made["new_schemas"]) == (["events"], ["events"], 1)
    assert made["roles_elsewhere"] == []
    assert made["readers"] == {}
    assert terraform.planned()["roles_on_topics"] == {}
    assert '\\"tidetable-events\\", \\"tidetable-batches\\"' in made["monitored"]["alert-backlog"]
    named = terraform.planned(name="ours")["monitored"]["alert-backlog"]
    assert '\\"ours-events\\", \\"ours-batches\\"' in named


def test_an_existing_topic(terraform):
    """A topic that exists gets a subscription; neither a topic nor a schema is made for it."""
    made = terraform.planned(existing_topics={"events": TOPIC}, timestamp_attribute="event_time")
    assert (made["new_topics"], made["new_subscriptions"], made["new_schemas"]) == ([], ["events"], 0)
    assert made["topics"] == made["roles_on_topics"] == {"events": TOPIC}
    assert made["subscriptions"] == {"events": "projects/my-project/subscriptions/tidetable-events"}


def test_an_existing_subscription(terraform):
    """A subscription of another project is read, watched and granted; a second input is made as before."""
    made = terraform.planned(
        name="ours",
        inputs=["events", "batches"],
        existing_subscriptions={"events": SUBSCRIPTION},
        existing_topics={"events": TOPIC},
        timestamp_attribute="event_time",
    )
    assert (made["new_topics"], made["new_subscriptions"]) == (["batches"], ["batches"])
    assert made["subscriptions"] == made["roles_on_subscriptions"]
    assert made["subscriptions"]["events"] == SUBSCRIPTION
    assert made["roles_on_topics"] == {"events": TOPIC, "batches": "projects/my-project/topics/ours-batches"}
    assert made["roles_elsewhere"] == ["other-project"]
    for file in ("alert-backlog", "dashboard"):
        assert '\\"from-the-field\\", \\"ours-batches\\"' in made["monitored"][file]
        assert "ours-events" not in made["monitored"][file]
        assert json.loads(made["monitored"][file])


def test_the_topic_of_an_existing_subscription_may_be_unknown(terraform):
    """Without a tracking subscription, nothing is needed on the topic."""
    made = terraform.planned(existing_subscriptions={"events": SUBSCRIPTION})
    assert made["topics"] == made["roles_on_topics"] == {}
    assert made["new_topics"] == []


def test_an_existing_schema(terraform):
    """With a schema that exists, the topic is made and SensorEvent's schema is not."""
    made = terraform.planned(existing_schema=SCHEMA)
    assert (made["new_topics"], made["new_schemas"]) == (["events"], 0)


def test_readers(terraform):
    """Each reader gets its role on each table."""
    made = terraform.planned(readers=["user:a@example.com", "group:b@example.com"], more_tables=["by_place"])
    granted = {(each["table"], each["member"]) for each in made["readers"].values()}
    members = {"user:a@example.com", "group:b@example.com"}
    assert granted == {(table, member) for table in ("sensors", "by_place") for member in members}


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"existing_topics": {"events": "readings"}}, "existing_topics must be full paths"),
        ({"existing_topics": {"events": SUBSCRIPTION}}, "existing_topics must be full paths"),
        ({"existing_topics": {"batches": TOPIC}}, "existing_topics must be for inputs of this module"),
        (
            {"inputs": ["events", "batches"], "existing_topics": {"events": TOPIC, "batches": TOPIC}},
            "a topic of its own for each",
        ),
        ({"existing_subscriptions": {"events": TOPIC}}, "existing_subscriptions must be full paths"),
        ({"existing_subscriptions": {"batches": SUBSCRIPTION}}, "existing_subscriptions must be for inputs"),
        (
            {
                "inputs": ["events", "batches"],
                "existing_subscriptions": dict.fromkeys(["events", "batches"], SUBSCRIPTION),
            },
            "a subscription of its own for each",
        ),
        (
            {"existing_subscriptions": {"events": SUBSCRIPTION}, "timestamp_attribute": "event_time"},
            "existing_subscriptions must have their topics in existing_topics",
        ),
        ({"existing_schema": {"name": "reading"}}, "existing_schema must have a name like"),
        ({"existing_schema": SCHEMA | {"encoding": "AVRO"}}, "the encoding BINARY or JSON"),
        ({"existing_schema": SCHEMA, "inputs": ["batches"]}, "existing_schema must be for a topic events"),
        (
            {"existing_schema": SCHEMA, "existing_topics": {"events": TOPIC}},
            "existing_schema must be for a topic events",
        ),
        ({"readers": ["allUsers"]}, "readers must be IAM members"),
        ({"team_views": {"north": {"row_prefixes": []}}}, "team_views must have row_prefixes"),
        ({"team_views": {"north": {"row_prefixes": ["a", ""]}}}, "team_views must have row_prefixes"),
        ({"team_views": {"north": {"row_prefixes": ["a"], "families": []}}}, "team_views must have row_prefixes"),
        ({"team_views": {"north": {"row_prefixes": ["a"], "families": ["tidetable"]}}}, "the families of team_views"),
        ({"team_views": {"a/b": {"row_prefixes": ["a"]}}}, "the id of a view in team_views"),
    ],
)
def test_what_contradicts_itself_is_refused(terraform, variables, message):
    """A variable of another form, or one that does not go with another, is refused before anything is made."""
    assert message in terraform.planned(**variables)


def test_a_view_shows_rows_and_families():
    """A team's view has the rows of its prefixes and all columns of its families."""
    (view,) = RESOURCES["google_bigtable_authorized_view", "team"]["subset_view"]
    assert "base64encode(prefix)" in view["row_prefixes"]
    (families,) = [each["family_subsets"] for each in view["dynamic"]]
    assert "each.value.families" in families["for_each"]
    assert families["content"][0]["qualifier_prefixes"] == [""]
