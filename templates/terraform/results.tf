# Results of finished windows: a topic for all who want to know, and a table of BigQuery that Pub/Sub writes by itself.
locals {
  publishes_results = var.publish_results || var.results_to_bigquery
  results_table     = var.results_to_bigquery ? "${var.project}.${google_bigquery_dataset.results[0].dataset_id}.${google_bigquery_table.results[0].table_id}" : null
}

# The schema of the topic of results. generate_schema.py generates it from protos/.
resource "google_pubsub_schema" "window_result" {
  count = local.publishes_results && var.results_encoding == "protobuf" ? 1 : 0

  project    = var.project
  name       = "${var.name}-window-result"
  type       = "PROTOCOL_BUFFER"
  definition = file("${path.module}/window_result.schema.proto")
}

resource "google_pubsub_topic" "results" {
  count = local.publishes_results ? 1 : 0

  project      = var.project
  name         = "${var.name}-results"
  labels       = var.labels
  kms_key_name = var.kms_key

  dynamic "schema_settings" {
    for_each = google_pubsub_schema.window_result[*].id

    content {
      schema   = schema_settings.value
      encoding = "BINARY"
    }
  }

  depends_on = [google_kms_crypto_key_iam_member.agent]
}

resource "google_bigquery_dataset" "results" {
  count = var.results_to_bigquery ? 1 : 0

  project     = var.project
  dataset_id  = replace(var.name, "-", "_")
  location    = var.region
  description = "Results of the windows that Tidetable aggregates."
  labels      = var.labels

  dynamic "default_encryption_configuration" {
    for_each = var.kms_key == null ? [] : [var.kms_key]

    content {
      kms_key_name = default_encryption_configuration.value
    }
  }

  depends_on = [google_kms_crypto_key_iam_member.bigquery]
}

# Partitions are of the publish time: BigQuery refuses rows whose partition is many years old, and events may be.
resource "google_bigquery_table" "results" {
  count = var.results_to_bigquery ? 1 : 0

  project             = var.project
  dataset_id          = google_bigquery_dataset.results[0].dataset_id
  table_id            = "results"
  description         = "Every result; of a window, the one with the greatest event_id is the newest."
  labels              = var.labels
  schema              = file("${path.module}/window_result.bigquery.json")
  clustering          = ["tier", "sensor_id", "window_start"]
  deletion_protection = var.deletion_protection

  time_partitioning {
    type          = "DAY"
    field         = "publish_time"
    expiration_ms = var.results_days == null ? null : var.results_days * 86400000
  }
}

# The newest result of each window.
resource "google_bigquery_table" "newest_results" {
  count = var.results_to_bigquery ? 1 : 0

  project             = var.project
  dataset_id          = google_bigquery_dataset.results[0].dataset_id
  table_id            = "newest_results"
  description         = "The newest result of each window."
  labels              = var.labels
  deletion_protection = false # it stores nothing

  view {
    use_legacy_sql = false
    query          = <<-EOT
      SELECT sensor_id, tier, window_start, window_end, kind, reading_count, metrics, event_id, version
      FROM `${local.results_table}`
      WHERE TRUE
      QUALIFY ROW_NUMBER() OVER (PARTITION BY tier, sensor_id, window_start ORDER BY event_id DESC) = 1
    EOT
  }
}

# Pub/Sub writes results to the table. What it can't write waits here, and is written as soon as it can.
resource "google_pubsub_subscription" "results" {
  count = var.results_to_bigquery ? 1 : 0

  project                    = var.project
  name                       = "${var.name}-results"
  topic                      = google_pubsub_topic.results[0].id
  labels                     = var.labels
  message_retention_duration = "${var.retention_seconds}s"

  bigquery_config {
    table               = local.results_table
    use_topic_schema    = true
    write_metadata      = true # for the publish time
    drop_unknown_fields = true # a later release may add fields, before the table has them
  }

  retry_policy {
    minimum_backoff = "10s"
    maximum_backoff = "600s"
  }

  expiration_policy {
    ttl = ""
  }

  depends_on = [google_bigquery_table_iam_member.bigquery]
}

# bigquery.tables.get and bigquery.tables.updateData: Pub/Sub's agent compares the schemas, and writes results.
resource "google_bigquery_table_iam_member" "bigquery" {
  count = var.results_to_bigquery ? 1 : 0

  project    = var.project
  dataset_id = google_bigquery_dataset.results[0].dataset_id
  table_id   = google_bigquery_table.results[0].table_id
  role       = "roles/bigquery.dataEditor"
  member     = "serviceAccount:service-${data.google_project.main[0].number}@gcp-sa-pubsub.iam.gserviceaccount.com"
}
