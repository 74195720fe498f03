# Alerts: a topic for whoever is woken. The rules are stored in the table: tidetable alerts apply.
resource "google_pubsub_topic" "alerts" {
  count = var.publish_alerts ? 1 : 0

  project      = var.project
  name         = "${var.name}-alerts"
  labels       = var.labels
  kms_key_name = var.kms_key

  depends_on = [google_kms_crypto_key_iam_member.agent]
}

resource "google_pubsub_topic_iam_member" "alerts" {
  count = var.publish_alerts ? 1 : 0

  project = var.project
  topic   = google_pubsub_topic.alerts[0].name
  role    = "roles/pubsub.publisher"
  member  = google_service_account.job.member
}
