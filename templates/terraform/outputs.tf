output "topics" {
  description = "The topics to publish to, by input; without that of an existing subscription, unless existing_topics has it."
  value       = local.topics
  depends_on  = [google_pubsub_topic.input]
}

output "subscriptions" {
  description = "The subscriptions that the jobs read, by input."
  value       = local.subscriptions
  depends_on  = [google_pubsub_subscription.input]
}

output "dead_letter_topic" {
  description = "The topic to which the jobs publish dead letters."
  value       = google_pubsub_topic.dead_letters.id
}

output "dead_letter_subscription" {
  description = "The subscription that stores dead letters."
  value       = google_pubsub_subscription.dead_letters.id
}

output "alerts_topic" {
  description = "The topic to which the jobs publish alerts; null if they watch nothing."
  value       = one(google_pubsub_topic.alerts[*].id)
}

output "results_topic" {
  description = "The topic to which the jobs publish results of windows; null if they publish none."
  value       = one(google_pubsub_topic.results[*].id)
}

output "results_table" {
  description = "BigQuery's table of results; null without one."
  value       = local.results_table
}

output "bigtable_instance" {
  description = "The Bigtable instance."
  value       = google_bigtable_instance.main.name
}

output "bigtable_table" {
  description = "The table."
  value       = google_bigtable_table.sensors.name
}

output "service_account" {
  description = "The service account of the launcher and the workers."
  value       = google_service_account.job.email
}

output "staging_bucket" {
  description = "The bucket for staging and temporary files."
  value       = google_storage_bucket.staging.url
}

output "jobs" {
  description = "The Dataflow jobs' ids, by input."
  value       = { for input, job in google_dataflow_flex_template_job.input : input => job.job_id }
}
