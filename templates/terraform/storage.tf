# What the launcher stages for the workers. Nothing in it may go while the job runs.
resource "google_storage_bucket" "staging" {
  project                     = var.project
  name                        = "${var.project}-${var.name}-staging"
  location                    = var.region
  labels                      = var.labels
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"
  force_destroy               = false

  soft_delete_policy {
    retention_duration_seconds = 0 # nothing here is worth keeping twice; Beam warns of a bucket that does
  }
}
