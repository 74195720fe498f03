# The schema of the topic of single events. generate_schema.py generates it from protos/.
resource "google_pubsub_schema" "sensor_event" {
  count = contains(local.new_topics, "events") && var.existing_schema == null ? 1 : 0

  project    = var.project
  name       = "${var.name}-sensor-event"
  type       = "PROTOCOL_BUFFER"
  definition = file("${path.module}/sensor_event.schema.proto")
}

resource "google_pubsub_topic" "input" {
  for_each = local.new_topics

  project      = var.project
  name         = "${var.name}-${each.key}"
  labels       = var.labels
  kms_key_name = var.kms_key

  # Pub/Sub checks messages against one message type. Batches have another type, so their topic has no schema.
  # BINARY: the JSON form of the schema's Timestamp differs from that of google.protobuf.Timestamp, which the job reads.
  dynamic "schema_settings" {
    for_each = each.key != "events" ? [] : var.existing_schema == null ? [google_pubsub_schema.sensor_event[0].id] : [var.existing_schema.name]

    content {
      schema   = schema_settings.value
      encoding = try(var.existing_schema.encoding, "BINARY")
    }
  }

  depends_on = [google_kms_crypto_key_iam_member.agent]
}

# Only the job may read this subscription: two readers would share its messages. It has no dead-letter policy,
# exactly-once delivery or ordering, because Dataflow acknowledges messages and removes duplicates by itself.
resource "google_pubsub_subscription" "input" {
  for_each = local.new_subscriptions

  project                    = var.project
  name                       = "${var.name}-${each.key}"
  topic                      = local.topics[each.key]
  labels                     = var.labels
  ack_deadline_seconds       = var.ack_deadline_seconds
  message_retention_duration = "${var.retention_seconds}s"

  retry_policy {
    minimum_backoff = "10s"
    maximum_backoff = "600s"
  }

  expiration_policy {
    ttl = "" # never expires, even if no job reads it for long
  }

  lifecycle {
    prevent_destroy = true # it stores the unread messages, and Pub/Sub has no deletion protection
  }

  depends_on = [google_pubsub_topic.input]
}

resource "google_pubsub_topic" "dead_letters" {
  project      = var.project
  name         = "${var.name}-dead-letters"
  labels       = var.labels
  kms_key_name = var.kms_key

  depends_on = [google_kms_crypto_key_iam_member.agent]
}

# Without a subscription, Pub/Sub drops published messages.
resource "google_pubsub_subscription" "dead_letters" {
  project                    = var.project
  name                       = "${var.name}-dead-letters"
  topic                      = google_pubsub_topic.dead_letters.id
  labels                     = var.labels
  ack_deadline_seconds       = 60 # for people who pull messages by hand
  message_retention_duration = "${var.dead_letter_retention_seconds}s"
  retain_acked_messages      = true # a seek brings back messages that were acknowledged by mistake

  retry_policy {
    minimum_backoff = "10s"
    maximum_backoff = "600s"
  }

  expiration_policy {
    ttl = ""
  }

  lifecycle {
    prevent_destroy = true # it stores the only copy of refused messages
  }
}
