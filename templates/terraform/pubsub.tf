# What publishers may send to the topic of single events. Generated from protos/ by generate_schema.py.
resource "google_pubsub_schema" "sensor_event" {
  project    = var.project
  name       = "${var.name}-sensor-event"
  type       = "PROTOCOL_BUFFER"
  definition = file("${path.module}/sensor_event.schema.proto")
}

resource "google_pubsub_topic" "input" {
  for_each = var.inputs

  project = var.project
  name    = "${var.name}-${each.key}"
  labels  = var.labels

  # Pub/Sub checks a message against one message type: batches, which are another, go to a topic without a schema.
  # BINARY: the schema's own Timestamp has another JSON form than google.protobuf.Timestamp, which the job expects.
  dynamic "schema_settings" {
    for_each = each.key == "events" ? [google_pubsub_schema.sensor_event.id] : []

    content {
      schema   = schema_settings.value
      encoding = "BINARY"
    }
  }
}

# Read by the job and by nobody else: two readers of one subscription share its messages. No dead-letter policy, no
# exactly-once delivery and no ordering: Dataflow acknowledges and removes duplicates by itself, and works around them.
resource "google_pubsub_subscription" "input" {
  for_each = var.inputs

  project                    = var.project
  name                       = "${var.name}-${each.key}"
  topic                      = google_pubsub_topic.input[each.key].id
  labels                     = var.labels
  ack_deadline_seconds       = var.ack_deadline_seconds
  message_retention_duration = "${var.retention_seconds}s"

  retry_policy {
    minimum_backoff = "10s"
    maximum_backoff = "600s"
  }

  expiration_policy {
    ttl = "" # never, however long no job reads
  }

  lifecycle {
    prevent_destroy = true # it holds what has not been read; Pub/Sub has no protection of its own
  }
}

resource "google_pubsub_topic" "dead_letters" {
  project = var.project
  name    = "${var.name}-dead-letters"
  labels  = var.labels
}

# Without a subscription Pub/Sub drops what is published.
resource "google_pubsub_subscription" "dead_letters" {
  project                    = var.project
  name                       = "${var.name}-dead-letters"
  topic                      = google_pubsub_topic.dead_letters.id
  labels                     = var.labels
  ack_deadline_seconds       = 60 # for whoever looks at them by hand
  message_retention_duration = "${var.dead_letter_retention_seconds}s"
  retain_acked_messages      = true # what was acknowledged by mistake can be had back with a seek

  retry_policy {
    minimum_backoff = "10s"
    maximum_backoff = "600s"
  }

  expiration_policy {
    ttl = ""
  }

  lifecycle {
    prevent_destroy = true # the only copy of what was refused
  }
}
