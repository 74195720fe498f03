# The files that the launcher stages for the workers. Delete nothing in it while a job runs.
resource "google_storage_bucket" "staging" {
  project                     = var.project
  name                        = "${var.project}-${var.name}-staging"
  location                    = var.region
  labels                      = var.labels
  uniform_bucket_level_access = true
  public_access_prevention    = "enforced"
  force_destroy               = false

  soft_delete_policy {
    retention_duration_seconds = 0 # staged files need no soft delete, and Beam warns about buckets that have it
  }

  dynamic "encryption" {
    for_each = var.kms_key == null ? [] : [var.kms_key]

    content {
      default_kms_key_name = encryption.value
    }
  }

  depends_on = [google_kms_crypto_key_iam_member.agent]
}

# Mappings and descriptors of other message types. A job reads them only at its launch.
resource "google_storage_bucket_object" "messages" {
  for_each = toset([for path in concat(var.message_mappings, var.message_descriptors) : path if !startswith(path, "projects/")])

  bucket = google_storage_bucket.staging.name
  name   = "messages/${filemd5(each.key)}/${replace(basename(each.key), ",", "_")}"
  source = each.key
}
