# Each service uses your key as its own agent, which therefore needs a role on the key. This command creates the agents
# of Pub/Sub and Bigtable: gcloud beta services identity create.
locals {
  agents = var.kms_key == null ? {} : {
    bigtable = "gcp-sa-bigtable"                # tables
    compute  = "compute-system"                 # the workers' disks
    dataflow = "dataflow-service-producer-prod" # the job's state
    pubsub   = "gcp-sa-pubsub"                  # messages
    storage  = "gs-project-accounts"            # staged files
  }
}

data "google_project" "main" {
  count = var.kms_key == null && !var.results_to_bigquery ? 0 : 1

  project_id = var.project
}

# To encrypt and decrypt with the key.
resource "google_kms_crypto_key_iam_member" "agent" {
  for_each = local.agents

  crypto_key_id = var.kms_key
  role          = "roles/cloudkms.cryptoKeyEncrypterDecrypter"
  member        = "serviceAccount:service-${data.google_project.main[0].number}@${each.value}.iam.gserviceaccount.com"
}

# The same for BigQuery, whose agent has a name of its own. The first dataset of a project creates it.
resource "google_kms_crypto_key_iam_member" "bigquery" {
  count = var.kms_key != null && var.results_to_bigquery ? 1 : 0

  crypto_key_id = var.kms_key
  role          = "roles/cloudkms.cryptoKeyEncrypterDecrypter"
  member        = "serviceAccount:bq-${data.google_project.main[0].number}@bigquery-encryption.iam.gserviceaccount.com"
}
