"""The Terraform module matches the code: families, policies, flags, permissions."""

import json
import re
from datetime import timedelta

import pytest

from pipeline.cloud.tables.tables import policies_of
from pipeline.core.schema.changes import DeclaredSchema
from pipeline.core.schema.gc_policies import MaxAge, MaxVersions, Never, Policy, Union
from pipeline.core.schema.table_schema import SCHEMA_FAMILY, TableSchema
from pipeline.job.settings import TidetableOptions, parse_flags, settings_of
from tests.templates.hcl import BLOCKS, DATA, LOCALS, MODULE, RESOURCES, TERRAFORM, VARIABLES, of_kind, parsed

EXAMPLE = sorted((TERRAFORM / "example").glob("*.tf"))

# Flags that the module leaves at their defaults: it always reads a subscription and always keeps dead letters.
UNUSED_FLAGS = {"input_topic", "dead_letters"}
# Every granted role, with the resource and the member.
ROLES = {
    ("google_project_iam_member", "worker", "roles/dataflow.worker"),
    ("google_project_iam_member", "viewer", "roles/dataflow.viewer"),
    ("google_project_iam_member", "tracking_subscription", "custom"),
    ("google_project_iam_member", "tracking_elsewhere", "custom"),
    ("google_pubsub_subscription_iam_member", "subscriber", "roles/pubsub.subscriber"),
    ("google_pubsub_subscription_iam_member", "viewer", "roles/pubsub.viewer"),
    ("google_pubsub_schema_iam_member", "messages", "roles/pubsub.viewer"),
    ("google_pubsub_topic_iam_member", "tracking_subscription", "roles/pubsub.subscriber"),
    ("google_pubsub_topic_iam_member", "dead_letters", "roles/pubsub.publisher"),
    ("google_pubsub_topic_iam_member", "alerts", "roles/pubsub.publisher"),
    ("google_pubsub_topic_iam_member", "results", "roles/pubsub.publisher"),
    ("google_bigquery_table_iam_member", "bigquery", "roles/bigquery.dataEditor"),
    ("google_bigtable_table_iam_member", "user", "roles/bigtable.user"),
    ("google_bigtable_table_iam_member", "more", "roles/bigtable.user"),
    ("google_bigtable_table_iam_member", "reader", "roles/bigtable.reader"),
    ("google_storage_bucket_iam_member", "staging", "roles/storage.objectAdmin"),
    ("google_artifact_registry_repository_iam_member", "image", "roles/artifactregistry.reader"),
    ("google_service_account_iam_member", "launcher", "roles/iam.serviceAccountUser"),
    ("google_kms_crypto_key_iam_member", "agent", "roles/cloudkms.cryptoKeyEncrypterDecrypter"),
    ("google_kms_crypto_key_iam_member", "bigquery", "roles/cloudkms.cryptoKeyEncrypterDecrypter"),
}
# Roles of others than the job's account: those who start it, those who read, and Google's services.
OTHERS = {
    "launcher": "${each.key}",
    "reader": "${each.value.member}",
    "agent": "serviceAccount:service-",
    "bigquery": "serviceAccount:",
}


JOB = RESOURCES["google_dataflow_flex_template_job", "input"]


def default_of(expression):
    """Returns the default of the variable that an expression refers to."""
    return VARIABLES[re.fullmatch(r"\$\{var\.(\w+)\}", expression)[1]]["default"]


def granted():
    """Returns resource kind, name and role of every grant."""
    return {
        (kind, name, "custom" if "custom_role" in body["role"] else body["role"])
        for (kind, name), body in RESOURCES.items()
        if "_iam_" in kind and "role" in body
    }


def parameters():
    """Returns a job's parameters as written: those of all jobs, and the input."""
    own = re.search(r"merge\(local\.parameters, \{(.+?)\}\)", JOB["parameters"])[1]
    name, value = own.split("=")
    return {**LOCALS["parameters"], name.strip(): value.strip()}


def test_references_are_declared():
    """Every variable, local value and resource in an expression is declared; every variable is used."""
    text = "\n".join(path.read_text() for path in MODULE)
    code = re.sub(r"(?m)^\s*#.*$|\s#.*$", "", text)
    assert set(re.findall(r"\bvar\.(\w+)", code)) == set(VARIABLES)
    assert set(re.findall(r"\blocal\.(\w+)", code)) <= set(LOCALS)
    referenced = set(re.findall(r"\b(google_\w+)\.(\w+)", code))
    assert referenced <= set(RESOURCES) | set(DATA)


def test_families_and_policies_are_those_of_the_code():
    """The table has the families of the code, each with one policy, by default the code's."""
    table = RESOURCES["google_bigtable_table", "sensors"]
    named = [block["family"] for block in table["column_family"]]
    families = [default_of(family) if "var." in family else family for family in named]
    policies = {SCHEMA_FAMILY: Never()}
    for body in of_kind("google_bigtable_gc_policy").values():
        family = body["column_family"]
        family = default_of(family) if "var." in family else family
        assert family not in policies
        policies[family] = policy_of(body)
    assert policies == policies_of(TableSchema.for_new_table())
    assert sorted(families) == sorted(policies)


def policy_of(body: dict) -> Policy:
    days, hours = re.fullmatch(r"\$\{var\.(\w+) \* 24\}h|([0-9]+)h", body["max_age"][0]["duration"]).groups()
    age = MaxAge(timedelta(days=VARIABLES[days]["default"]) if days else timedelta(hours=int(hours)))
    if body.get("mode") != "UNION":
        return age
    return Union((age, MaxVersions(body["max_version"][0]["number"])))


def test_parameters_are_the_flags():
    """Parameters of the job are flags, and all flags are parameters except those that the module does not use."""
    flags = set(TidetableOptions([])._visible_option_list())
    assert set(parameters()) == flags - UNUSED_FLAGS


def test_variables_of_flags_have_the_defaults_of_the_flags():
    """A variable for a flag has the flag's default."""
    options = TidetableOptions([])
    for flag, value in parameters().items():
        if re.fullmatch(r"\$\{var\.\w+\}", value) and flag != "bigtable_project":
            assert default_of(value) == getattr(options, flag), flag


def test_the_job_accepts_the_parameters():
    """With its defaults, the job's parameters are valid settings."""
    families = {f"{kind}_family": VARIABLES[f"{kind}_family"]["default"] for kind in ("raw", "stats", "meta")}
    known = families | {
        "schema": "default",
        "input_subscription": "projects/my-project/subscriptions/tidetable-events",
        "dead_letter_topic": "projects/my-project/topics/tidetable-dead-letters",
        "bigtable_project": "my-project",
        "bigtable_instance": "tidetable-bigtable",
        "bigtable_table": VARIABLES["table"]["default"],
        "message_mapping": None,
        "message_descriptors": None,
        "alerts_topic": "projects/my-project/topics/tidetable-alerts",
        "results_topic": "projects/my-project/topics/tidetable-results",
    }
    values = {flag: known[flag] if flag in known else default_of(value) for flag, value in parameters().items()}
    argv = [f"--{flag}={value}" for flag, value in values.items() if value is not None]
    settings = settings_of(parse_flags(["--runner=DataflowRunner", *argv]))
    assert settings.input_subscription == known["input_subscription"]
    assert settings.declared == DeclaredSchema(default=True, raw="raw", stats="stats", meta="meta")
    assert settings.declared.schema() == TableSchema.default()


def test_a_table_with_a_schema_of_its_own():
    """Families are passed for the default schema only, and each further table gets its role."""
    declared = {"schema": '"default"'} | {flag: f"var.{flag}" for flag in parameters() if flag.endswith("_family")}
    for flag, value in declared.items():
        assert parameters()[flag] == f"${{var.default_schema ? {value} : null}}"
    assert VARIABLES["default_schema"]["default"] in (True, "true")
    tables = parameters()["bigtable_table"]
    assert "google_bigtable_table.sensors.name" in tables
    assert "var.more_tables" in tables
    assert RESOURCES["google_bigtable_table_iam_member", "more"]["for_each"] == "${var.more_tables}"


def test_mappings_are_copied_to_the_bucket():
    """Local files become objects whose names change with their content; schemas are passed on, and may be read."""
    messages = RESOURCES["google_storage_bucket_object", "messages"]
    assert messages["bucket"] == "${google_storage_bucket.staging.name}"
    assert "filemd5(each.key)" in messages["name"]
    for flag, variable in (("message_mapping", "message_mappings"), ("message_descriptors", "message_descriptors")):
        assert parameters()[flag] == f"${{local.{flag}}}"
        assert f"length(var.{variable}) == 0 ? null" in LOCALS[flag]
        assert "local.message_places" in LOCALS[flag]
        assert f"var.{variable}" in messages["for_each"]
        assert VARIABLES[variable]["default"] == []
    assert RESOURCES["google_pubsub_schema_iam_member", "messages"]["for_each"] == "${local.message_schemas}"


def test_the_job_is_drained_and_runs_on_the_streaming_engine():
    """Destroying the job drains it; launcher and workers run as one account, on Streaming Engine."""
    assert JOB["on_delete"] == "drain"
    assert JOB["enable_streaming_engine"] is True or JOB["enable_streaming_engine"] == "true"
    assert JOB["service_account_email"] == "${google_service_account.job.email}"
    assert JOB["provider"] == "${google-beta}" or JOB["provider"] == "google-beta"


def test_the_job_waits_for_its_roles():
    """The job starts after its account has every role; those who start it or read may get theirs later."""
    waits = {re.sub(r"[${}]", "", each) for each in JOB["depends_on"]}
    assert {f"{kind}.{name}" for kind, name, _ in granted() if name not in ("launcher", "reader")} <= waits


@pytest.mark.parametrize("name", sorted(VARIABLES))
def test_variables_are_explained_and_checked(name):
    """Every variable has a type and a description; invalid values are refused with a message."""
    variable = VARIABLES[name]
    assert variable["type"]
    assert variable["description"].strip().endswith((".", "EOT"))
    checks = variable.get("validation", [])
    assert checks or variable["type"] == "bool"
    for check in checks:
        assert f"var.{name}" in check["condition"]
        assert name.rstrip("s").replace("_", "") in check["error_message"].replace("_", "").replace("-", "").replace(
            " ", ""
        )


@pytest.mark.parametrize("path", EXAMPLE, ids=lambda path: path.name)
def test_the_example_fits_the_module(path):
    """The example sets every variable without a default, no unknown ones, and reads existing outputs."""
    blocks = parsed([path])
    (module,) = [block["tidetable"] for block in blocks["module"]]
    assert module.pop("source") == "../"
    assert set(module) <= set(VARIABLES)
    assert {name for name, body in VARIABLES.items() if "default" not in body} <= set(module)
    outputs = {name for block in BLOCKS["output"] for name in block}
    assert set(re.findall(r"module\.tidetable\.(\w+)", path.read_text())) <= outputs


def test_outputs_are_explained():
    """Every output has a description."""
    for block in BLOCKS["output"]:
        for name, body in block.items():
            assert body["description"], name


def test_providers_are_pinned():
    """Terraform and every provider have a version range, bounded for providers; the example has the same."""
    for paths in (MODULE, EXAMPLE):
        (terraform,) = parsed(paths)["terraform"]
        assert terraform["required_version"] == ">= 1.9"
        (providers,) = terraform["required_providers"]
        assert set(providers) == {"google", "google-beta"}
        assert all(provider["version"] == ">= 7.0, < 8.0" for provider in providers.values())


def test_data_is_protected():
    """Instance and tables refuse deletion by default; subscriptions of events always do; the bucket unless empty."""
    assert VARIABLES["deletion_protection"]["default"] in (True, "true")
    assert RESOURCES["google_bigtable_instance", "main"]["deletion_protection"] == "${var.deletion_protection}"
    table = RESOURCES["google_bigtable_table", "sensors"]["deletion_protection"]
    assert re.search(r'var\.deletion_protection \? "PROTECTED" : "UNPROTECTED"', table)
    assert RESOURCES["google_bigquery_table", "results"]["deletion_protection"] == "${var.deletion_protection}"
    for name, body in of_kind("google_pubsub_subscription").items():
        if name != "results":  # BigQuery has what it delivered, and the table all else
            assert body["lifecycle"][0]["prevent_destroy"] in (True, "true")
    assert RESOURCES["google_storage_bucket", "staging"]["force_destroy"] in (False, "false")


def test_roles_are_minimal():
    """Exactly these roles are granted, each on its resource; none is a basic or administrative role."""
    assert granted() == ROLES
    for _, _, role in ROLES:
        assert not re.search(r"^roles/(owner|editor|viewer)$|[.](admin|editor)$", role)


def test_roles_are_for_the_job_only():
    """Every role is for the job's account, or for others as listed, and none replaces other grants."""
    for (kind, name), body in RESOURCES.items():
        if "_iam_" in kind and "role" in body:
            assert kind.endswith("_member")
            assert body["member"].startswith(OTHERS.get(name, "${google_service_account.job.member}"))


def test_roles_have_reasons():
    """Above every grant, or the custom role that it grants, a comment states the reason."""
    text = (TERRAFORM / "identity.tf").read_text()
    for block in re.findall(r'(?:^#.*\n)*^resource "google_\w+_iam_\w+" "\w+"', text, re.MULTILINE):
        assert block.startswith("#") or '"google_project_iam_member" "tracking_subscription"' in block, block


def test_the_image_can_be_pulled_without_a_job():
    """The first apply, which knows no image yet, grants the repository of the job's region."""
    grant = RESOURCES["google_artifact_registry_repository_iam_member", "image"]
    assert not {"count", "for_each"} & set(grant)
    for argument, place, value in (
        ("project", "project", "project"),
        ("location", "location", "region"),
        ("repository", "name", "repository"),
    ):
        assert grant[argument] == f"${{local.repository.{place}}}"
        assert re.search(rf"^    {place} += var\.{value}$", (TERRAFORM / "identity.tf").read_text(), re.MULTILINE)


def test_the_manual_names_the_roles():
    """The table of permissions has every role of Google's that the job's account is granted."""
    manual = (TERRAFORM.parent.parent / "docs/launch.md").read_text()
    table = manual.partition("## Permissions")[2].partition("\n## ")[0]
    named = {
        f"roles/{name}"
        for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
        for name in row.replace("`", "").split(", ")
    }
    assert named == {role for _, name, role in ROLES if role != "custom" and name not in OTHERS}


def test_the_custom_role_manages_subscriptions_and_no_more():
    """The tracking subscription only needs to manage subscriptions, and only with a timestamp attribute."""
    permissions = LOCALS["tracking_role"]["permissions"]
    assert all(permission.startswith("pubsub.subscriptions.") for permission in permissions)
    assert not {"pubsub.subscriptions.update", "pubsub.subscriptions.setIamPolicy"} & set(permissions)
    for role in of_kind("google_project_iam_custom_role").values():
        assert role["permissions"] == "${local.tracking_role.permissions}"
        assert "local.tracking_projects" in role.get("count", role.get("for_each"))


def test_names_belong_together():
    """A job reads the subscription of its topic; dead letters go to the topic whose subscription keeps them."""
    subscriptions = of_kind("google_pubsub_subscription")
    assert subscriptions["input"]["topic"] == "${local.topics[each.key]}"
    assert subscriptions["dead_letters"]["topic"] == "${google_pubsub_topic.dead_letters.id}"
    assert subscriptions["results"]["topic"] == "${google_pubsub_topic.results[0].id}"
    assert "google_pubsub_topic.results[0].id" in parameters()["results_topic"]
    assert "google_pubsub_topic.alerts[" in parameters()["alerts_topic"]
    assert parameters()["input_subscription"] == "local.subscriptions[each.key]"
    assert parameters()["dead_letter_topic"] == "${google_pubsub_topic.dead_letters.id}"
    for name, body in subscriptions.items():
        assert body["name"] == RESOURCES["google_pubsub_topic", name]["name"]
        assert body["retry_policy"]
        assert body["expiration_policy"][0]["ttl"] == ""


def test_the_schema_is_for_single_events():
    """The topic of single events has the generated schema in binary encoding, or one that exists; others have none."""
    schema = RESOURCES["google_pubsub_schema", "sensor_event"]
    assert schema["type"] == "PROTOCOL_BUFFER"
    assert "sensor_event.schema.proto" in schema["definition"]
    (dynamic,) = RESOURCES["google_pubsub_topic", "input"]["dynamic"]
    assert 'each.key != "events" ? []' in dynamic["schema_settings"]["for_each"]
    assert dynamic["schema_settings"]["content"][0]["encoding"] == '${try(var.existing_schema.encoding, "BINARY")}'


def test_bigquery_gets_results_without_code():
    """Pub/Sub writes the topic's schema into a table of the generated columns, and a view has the newest results."""
    assert "window_result.schema.proto" in RESOURCES["google_pubsub_schema", "window_result"]["definition"]
    (dynamic,) = RESOURCES["google_pubsub_topic", "results"]["dynamic"]
    assert dynamic["schema_settings"]["content"][0]["encoding"] == "BINARY"
    (config,) = RESOURCES["google_pubsub_subscription", "results"]["bigquery_config"]
    assert all(config[name] in (True, "true") for name in ("use_topic_schema", "write_metadata"))
    assert config["table"] == "${local.results_table}"
    table = RESOURCES["google_bigquery_table", "results"]
    assert "window_result.bigquery.json" in table["schema"]
    columns = {each["name"] for each in json.loads((TERRAFORM / "window_result.bigquery.json").read_text())}
    assert {table["time_partitioning"][0]["field"], *table["clustering"]} <= columns
    (view,) = RESOURCES["google_bigquery_table", "newest_results"]["view"]
    selected = re.search(r"SELECT (.*)", view["query"])[1].split(", ")
    assert set(selected) < columns
    assert "PARTITION BY tier, sensor_id, window_start ORDER BY event_id DESC" in view["query"]
    for kind in ("dataset", "table"):
        for body in of_kind(f"google_bigquery_{kind}").values():
            assert body["count"] == "${var.results_to_bigquery ? 1 : 0}"


def test_names_in_monitoring():
    """Dashboard and alerts use the module's names with its default prefix."""
    files = "".join(path.read_text() for path in (TERRAFORM.parent / "monitoring").glob("*.json"))
    made = {
        body["name"].replace("${var.name}", VARIABLES["name"]["default"]).replace("${each.key}", each)
        for kind in ("google_pubsub_subscription", "google_bigtable_instance", "google_dataflow_flex_template_job")
        for body in of_kind(kind).values()
        for each in ("events", "batches")
    }
    looked_for = set(re.findall(r'\\"(tidetable-[a-z-]*[a-z])\\"', files))
    assert looked_for == made - {"tidetable-results"}  # not every module has it


def test_the_manual_enables_what_terraform_calls():
    """The list of APIs has those of every kind of resource, and the one that grants roles on a project."""
    apis = {
        "artifact_registry": {"artifactregistry"},
        "bigquery": {"bigquery"},
        "bigtable": {"bigtable", "bigtableadmin"},
        "compute": {"compute"},
        "dataflow": {"dataflow", "compute"},
        "kms": {"cloudkms"},
        "monitoring": {"monitoring"},
        "project": {"cloudresourcemanager", "iam"},
        "pubsub": {"pubsub"},
        "service_account": {"iam"},
        "storage": {"storage"},
    }
    of_kinds = [
        next(names for part, names in apis.items() if kind.startswith(f"google_{part}")) for kind, _ in RESOURCES | DATA
    ]
    manual = (TERRAFORM.parent.parent / "docs/launch.md").read_text()
    enabled = re.search(r"gcloud services enable (.*?) --project", manual, re.DOTALL)[1]
    assert set().union(*of_kinds) <= set(re.findall(r"(\w+)\.googleapis\.com", enabled))
