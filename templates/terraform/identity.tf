# One service account for the launcher and the workers, with the roles that the job needs and no more. A comment above
# each role gives its reason. Roles are granted on single resources where Google Cloud allows it.

resource "google_service_account" "job" {
  project      = var.project
  account_id   = "${var.name}-job"
  display_name = "Tidetable: launcher and workers of the Dataflow job"
}

# To be a worker: lease work, report it, write logs and metrics, read the staging bucket.
resource "google_project_iam_member" "worker" {
  project = var.project
  role    = "roles/dataflow.worker"
  member  = google_service_account.job.member
}

# dataflow.jobs.list, which the worker's role lacks: a launcher that updates a job compares its graph with the running
# job's, and reads when that began. It can only be granted on the project.
resource "google_project_iam_member" "viewer" {
  project = var.project
  role    = "roles/dataflow.viewer"
  member  = google_service_account.job.member
}

# To read and acknowledge messages.
resource "google_pubsub_subscription_iam_member" "subscriber" {
  for_each = local.subscriptions

  project      = split("/", each.value)[1]
  subscription = basename(each.value)
  role         = "roles/pubsub.subscriber"
  member       = google_service_account.job.member

  depends_on = [google_pubsub_subscription.input]
}

# pubsub.subscriptions.get: the launch checks look up the subscription, and Dataflow its ack deadline. Without the
# permission, Dataflow assumes the shortest deadline and extends it more often than necessary.
resource "google_pubsub_subscription_iam_member" "viewer" {
  for_each = local.subscriptions

  project      = split("/", each.value)[1]
  subscription = basename(each.value)
  role         = "roles/pubsub.viewer"
  member       = google_service_account.job.member

  depends_on = [google_pubsub_subscription.input]
}

# pubsub.schemas.get and listRevisions: the launcher reads the revisions of schemas that declare mapped types, and workers
# fetch later ones.
resource "google_pubsub_schema_iam_member" "messages" {
  for_each = local.message_schemas

  project = split("/", each.key)[1]
  schema  = split("/", each.key)[3]
  role    = "roles/pubsub.viewer"
  member  = google_service_account.job.member
}

# With a timestamp attribute, Dataflow creates a second subscription to the topic, as the job's account. It reads the
# event times of waiting messages from it, for the watermark. The role is granted on the project, because the
# subscription does not exist yet.
resource "google_project_iam_custom_role" "tracking_subscription" {
  count = contains(local.tracking_projects, var.project) ? 1 : 0

  project     = var.project
  role_id     = local.tracking_role.id
  title       = local.tracking_role.title
  description = local.tracking_role.description
  permissions = local.tracking_role.permissions
}

resource "google_project_iam_member" "tracking_subscription" {
  count = contains(local.tracking_projects, var.project) ? 1 : 0

  project = var.project
  role    = google_project_iam_custom_role.tracking_subscription[0].id
  member  = google_service_account.job.member
}

# The same in the projects of subscriptions that exist elsewhere: a project's role can be granted in that project only.
resource "google_project_iam_custom_role" "tracking_elsewhere" {
  for_each = setsubtract(local.tracking_projects, [var.project])

  project     = each.key
  role_id     = local.tracking_role.id
  title       = local.tracking_role.title
  description = local.tracking_role.description
  permissions = local.tracking_role.permissions
}

# To create and read tracking subscriptions there.
resource "google_project_iam_member" "tracking_elsewhere" {
  for_each = google_project_iam_custom_role.tracking_elsewhere

  project = each.key
  role    = google_project_iam_custom_role.tracking_elsewhere[each.key].id
  member  = google_service_account.job.member
}

# pubsub.topics.attachSubscription, for the tracking subscription. On a topic, the role grants nothing else.
resource "google_pubsub_topic_iam_member" "tracking_subscription" {
  for_each = { for input, path in local.topics : input => path if var.timestamp_attribute != null }

  project = split("/", each.value)[1]
  topic   = basename(each.value)
  role    = "roles/pubsub.subscriber"
  member  = google_service_account.job.member

  depends_on = [google_pubsub_topic.input]
}

# To publish dead letters.
resource "google_pubsub_topic_iam_member" "dead_letters" {
  project = var.project
  topic   = google_pubsub_topic.dead_letters.name
  role    = "roles/pubsub.publisher"
  member  = google_service_account.job.member
}

# To publish results of windows.
resource "google_pubsub_topic_iam_member" "results" {
  count = local.publishes_results ? 1 : 0

  project = var.project
  topic   = google_pubsub_topic.results[0].name
  role    = "roles/pubsub.publisher"
  member  = google_service_account.job.member
}

# bigtable.tables.mutateRows to write rows, bigtable.tables.get for the launch checks, and bigtable.tables.readRows for
# the table's stored schema. It is the smallest of Google's roles that can write. It covers only this table.
resource "google_bigtable_table_iam_member" "user" {
  project       = var.project
  instance_name = google_bigtable_instance.main.name
  table         = google_bigtable_table.sensors.name
  role          = "roles/bigtable.user"
  member        = google_service_account.job.member
}

# The same for every further table.
resource "google_bigtable_table_iam_member" "more" {
  for_each = var.more_tables

  project       = var.project
  instance_name = google_bigtable_instance.main.name
  table         = each.key
  role          = "roles/bigtable.user"
  member        = google_service_account.job.member
}

# To stage the job's files and to read them. Staging a file again replaces the old one, which requires deletion.
resource "google_storage_bucket_iam_member" "staging" {
  bucket = google_storage_bucket.staging.name
  role   = "roles/storage.objectAdmin"
  member = google_service_account.job.member
}

# To pull the image of launcher and workers. Granted without a job here too, for jobs that "make launch" starts.
resource "google_artifact_registry_repository_iam_member" "image" {
  project    = local.repository.project
  location   = local.repository.location
  repository = local.repository.name
  role       = "roles/artifactregistry.reader"
  member     = google_service_account.job.member
}

# bigtable.tables.readRows and bigtable.tables.get on the tables, for people and services that read them.
resource "google_bigtable_table_iam_member" "reader" {
  for_each = {
    for pair in setproduct(setunion([var.table], var.more_tables), var.readers) :
    join(" ", pair) => { table = pair[0], member = pair[1] }
  }

  project       = var.project
  instance_name = google_bigtable_instance.main.name
  table         = each.value.table
  role          = "roles/bigtable.reader"
  member        = each.value.member

  depends_on = [google_bigtable_table.sensors]
}

# Those who start the job assign this account to it. They also need roles/dataflow.developer on the project.
resource "google_service_account_iam_member" "launcher" {
  for_each = var.launchers

  service_account_id = google_service_account.job.name
  role               = "roles/iam.serviceAccountUser"
  member             = each.key
}

locals {
  tracking_role = {
    id          = "${replace(var.name, "-", "_")}_tracking_subscription"
    title       = "Tidetable: tracking subscription"
    description = "Lets Dataflow's Pub/Sub source track event times through a subscription of its own."
    permissions = [
      "pubsub.subscriptions.consume",
      "pubsub.subscriptions.create",
      "pubsub.subscriptions.delete",
      "pubsub.subscriptions.get",
    ]
  }

  repository = startswith(var.repository, "projects/") ? regex(
    "^projects/(?P<project>[^/]+)/locations/(?P<location>[^/]+)/repositories/(?P<name>[^/]+)$", var.repository
    ) : {
    project  = var.project
    location = var.region
    name     = var.repository
  }
}
