locals {
  # Each name is a flag of the pipeline. Null leaves the flag unset: the table's stored schema applies. Each job adds its
  # input.
  parameters = {
    timestamp_attribute = var.timestamp_attribute
    id_attribute        = var.id_attribute
    dead_letter_topic   = google_pubsub_topic.dead_letters.id
    bigtable_project    = var.project
    bigtable_instance   = google_bigtable_instance.main.name
    bigtable_table      = join(",", concat([google_bigtable_table.sensors.name], sort(var.more_tables)))
    schema              = var.default_schema ? "default" : null
    window              = var.window
    early_firing        = var.early_firing
    late_firing         = var.late_firing
    allowed_lateness    = var.allowed_lateness
    max_future          = var.max_future
    deduplicate         = var.deduplicate
    bigtable_writer     = var.bigtable_writer
    app_profile         = var.app_profile
    raw_family          = var.default_schema ? var.raw_family : null
    stats_family        = var.default_schema ? var.stats_family : null
    meta_family         = var.default_schema ? var.meta_family : null
    launch_checks       = var.launch_checks
  }
}

# A changed parameter or image updates the job in place if its graph allows. Otherwise the job is replaced: it is
# drained and started again, and the new job continues from what the table stores.
resource "google_dataflow_flex_template_job" "input" {
  provider = google-beta
  for_each = var.template_path == null ? toset([]) : var.inputs

  project                 = var.project
  region                  = var.region
  name                    = "${var.name}-${each.key}"
  labels                  = var.labels
  container_spec_gcs_path = var.template_path
  sdk_container_image     = var.image
  service_account_email   = google_service_account.job.email
  staging_location        = "gs://${google_storage_bucket.staging.name}/staging"
  temp_location           = "gs://${google_storage_bucket.staging.name}/temp"
  enable_streaming_engine = true
  machine_type            = var.machine_type
  max_workers             = var.max_workers
  subnetwork              = var.subnetwork
  ip_configuration        = "WORKER_IP_PRIVATE" # workers connect only to Google's services
  on_delete               = "drain"             # writes what has been read, and all open windows
  additional_experiments  = var.at_least_once ? ["streaming_mode_at_least_once"] : null

  parameters = {
    for flag, value in merge(local.parameters, { input_subscription = google_pubsub_subscription.input[each.key].id }) :
    flag => value if value != null
  }

  # The launch checks, and the first writes a minute later, need all roles and resources.
  depends_on = [
    google_artifact_registry_repository_iam_member.image,
    google_bigtable_gc_policy.meta,
    google_bigtable_gc_policy.raw,
    google_bigtable_gc_policy.stats,
    google_bigtable_table_iam_member.more,
    google_bigtable_table_iam_member.user,
    google_project_iam_member.tracking_subscription,
    google_project_iam_member.viewer,
    google_project_iam_member.worker,
    google_pubsub_subscription.dead_letters,
    google_pubsub_subscription_iam_member.subscriber,
    google_pubsub_subscription_iam_member.viewer,
    google_pubsub_topic_iam_member.dead_letters,
    google_pubsub_topic_iam_member.tracking_subscription,
    google_storage_bucket_iam_member.staging,
  ]
}
