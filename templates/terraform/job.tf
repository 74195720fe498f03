locals {
  # Each name is a flag of the pipeline. Null leaves the flag unset: the table's stored schema applies. Each job adds its
  # input.
  parameters = {
    timestamp_attribute  = var.timestamp_attribute
    id_attribute         = var.id_attribute
    message_mapping      = local.message_mapping
    message_descriptors  = local.message_descriptors
    message_decoder      = var.message_decoder
    default_message_type = var.default_message_type
    unknown_fields       = var.unknown_fields
    dead_letter_topic    = google_pubsub_topic.dead_letters.id
    alerts_topic         = one(google_pubsub_topic.alerts[*].id)
    results_topic        = local.publishes_results ? google_pubsub_topic.results[0].id : null
    results              = var.results
    results_encoding     = var.results_encoding
    bigtable_project     = var.project
    bigtable_instance    = google_bigtable_instance.main.name
    bigtable_table       = join(",", concat([google_bigtable_table.sensors.name], sort(var.more_tables)))
    schema               = var.default_schema ? "default" : null
    window               = var.window
    early_firing         = var.early_firing
    late_firing          = var.late_firing
    allowed_lateness     = var.allowed_lateness
    max_future           = var.max_future
    bigtable_writer      = var.bigtable_writer
    newest_every         = var.newest_every
    app_profile          = var.app_profile
    raw_family           = var.default_schema ? var.raw_family : null
    stats_family         = var.default_schema ? var.stats_family : null
    meta_family          = var.default_schema ? var.meta_family : null
    launch_checks        = var.launch_checks
  }

  # The files' places in the bucket change with their content, and a changed parameter updates the job.
  message_places = { for path, object in google_storage_bucket_object.messages : path => "gs://${object.bucket}/${object.name}" }

  message_mapping     = length(var.message_mappings) == 0 ? null : join(",", [for path in var.message_mappings : local.message_places[path]])
  message_descriptors = length(var.message_descriptors) == 0 ? null : join(",", [for path in var.message_descriptors : lookup(local.message_places, path, path)])
  message_schemas     = toset([for path in var.message_descriptors : path if startswith(path, "projects/")])

  # Dataflow's service options, which a launch of a template takes as experiments. Never empty: the provider would then
  # keep those of the running job.
  experiments = concat(
    ["min_num_workers=${var.min_workers}"],
    var.at_least_once ? ["streaming_mode_at_least_once"] : [],
    sort(var.service_options),
  )

  # A subnetwork may belong to another project. The default network has one named default in every region.
  subnetwork = {
    project = try(regex("projects/([^/]+)/", var.subnetwork)[0], var.project)
    region  = try(regex("regions/([^/]+)/", var.subnetwork)[0], var.region)
    name    = try(regex("[^/]+$", var.subnetwork), "default")
  }
}

# Workers without public addresses reach Google's services only from a subnetwork with Private Google Access. Dataflow
# refuses the job otherwise, minutes later.
data "google_compute_subnetwork" "workers" {
  count = var.template_path != null && var.private && var.launch_checks == "on" ? 1 : 0

  project = local.subnetwork.project
  region  = local.subnetwork.region
  name    = local.subnetwork.name
}

# A changed parameter or template updates the job in place if its graph allows. Otherwise the job is replaced: it is
# drained and started again, and the new job continues from what the table stores.
#
# The template's spec, not this file, sets the workers' image, machine type and maximum number, and the locations of
# files. The provider reads them back under the names of Java's options, finds nothing for a Python job, and would update
# or replace it at every apply. It would also replace a job that was scaled while it ran.
resource "google_dataflow_flex_template_job" "input" {
  provider = google-beta
  for_each = var.template_path == null ? toset([]) : var.inputs

  project                 = var.project
  region                  = var.region
  name                    = "${var.name}-${each.key}"
  labels                  = var.labels
  container_spec_gcs_path = var.template_path
  service_account_email   = google_service_account.job.email
  enable_streaming_engine = true
  launcher_machine_type   = var.launcher_machine_type
  subnetwork              = var.subnetwork
  ip_configuration        = var.private ? "WORKER_IP_PRIVATE" : "WORKER_IP_PUBLIC"
  kms_key_name            = var.kms_key
  on_delete               = "drain" # writes all read events and all open windows
  additional_experiments  = local.experiments

  parameters = {
    for flag, value in merge(local.parameters, { input_subscription = local.subscriptions[each.key] }) :
    flag => value if value != null
  }

  lifecycle {
    precondition {
      condition     = alltrue(data.google_compute_subnetwork.workers[*].private_ip_google_access)
      error_message = "subnetwork ${local.subnetwork.name} has no Private Google Access, which workers without public addresses need; run: gcloud compute networks subnets update ${local.subnetwork.name} --project=${local.subnetwork.project} --region=${local.subnetwork.region} --enable-private-ip-google-access"
    }
  }

  # The launch checks, and the first writes a minute later, need all roles and resources.
  depends_on = [
    google_artifact_registry_repository_iam_member.image,
    google_bigquery_table_iam_member.bigquery,
    google_bigtable_app_profile.main,
    google_bigtable_gc_policy.meta,
    google_bigtable_gc_policy.raw,
    google_bigtable_gc_policy.stats,
    google_bigtable_table_iam_member.more,
    google_bigtable_table_iam_member.user,
    google_kms_crypto_key_iam_member.agent,
    google_kms_crypto_key_iam_member.bigquery,
    google_project_iam_member.tracking_elsewhere,
    google_project_iam_member.tracking_subscription,
    google_project_iam_member.viewer,
    google_project_iam_member.worker,
    google_pubsub_schema_iam_member.messages,
    google_pubsub_subscription.dead_letters,
    google_pubsub_subscription.results,
    google_pubsub_subscription_iam_member.subscriber,
    google_pubsub_subscription_iam_member.viewer,
    google_pubsub_topic_iam_member.dead_letters,
    google_pubsub_topic_iam_member.alerts,
    google_pubsub_topic_iam_member.results,
    google_pubsub_topic_iam_member.tracking_subscription,
    google_storage_bucket_iam_member.staging,
  ]
}
