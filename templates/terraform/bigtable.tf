resource "google_bigtable_instance" "main" {
  project             = var.project
  name                = "${var.name}-bigtable"
  labels              = var.labels
  deletion_protection = var.deletion_protection

  dynamic "cluster" {
    for_each = var.clusters

    content {
      cluster_id   = cluster.key
      zone         = cluster.value.zone
      storage_type = var.storage_type
      kms_key_name = var.kms_key

      autoscaling_config {
        min_nodes  = cluster.value.min_nodes
        max_nodes  = cluster.value.max_nodes
        cpu_target = cluster.value.cpu_target
      }
    }
  }

  depends_on = [google_kms_crypto_key_iam_member.agent]
}

resource "google_bigtable_app_profile" "main" {
  for_each = var.app_profiles

  project                       = var.project
  instance                      = google_bigtable_instance.main.name
  app_profile_id                = each.key
  multi_cluster_routing_use_any = each.value.cluster == null ? true : null

  dynamic "single_cluster_routing" {
    for_each = each.value.cluster == null ? [] : [each.value.cluster]

    content {
      cluster_id                 = single_cluster_routing.value
      allow_transactional_writes = false # not needed: writes are plain cells, and the last pane replaces the others in any order
    }
  }

  dynamic "standard_isolation" {
    for_each = each.value.priority == null ? [] : [each.value.priority]

    content {
      priority = standard_isolation.value
    }
  }
}

# The families and policies of the default schema, pipeline/core/schema/table_schema.py. The launch checks compare them.
resource "google_bigtable_table" "sensors" {
  project             = var.project
  instance_name       = google_bigtable_instance.main.name
  name                = var.table
  deletion_protection = var.deletion_protection ? "PROTECTED" : "UNPROTECTED"
  split_keys          = var.split_keys

  dynamic "automated_backup_policy" {
    for_each = var.backup_days == 0 ? [] : [var.backup_days]

    content {
      frequency        = "24h0m0s"
      retention_period = "${automated_backup_policy.value * 24}h0m0s"
    }
  }

  lifecycle {
    ignore_changes = [split_keys] # the keys of a new table only: Terraform would create it again
  }

  column_family {
    family = var.raw_family
  }

  column_family {
    family = var.stats_family
  }

  column_family {
    family = var.meta_family
  }

  # "tidetable table apply" stores the table's schema in this family. Without a policy, it is never collected.
  column_family {
    family = "tidetable"
  }

  # That schema uses this family for each sensor's newest readings.
  column_family {
    family = "latest"
  }

  dynamic "column_family" {
    for_each = var.more_families

    content {
      family = column_family.key
    }
  }
}

# deletion_policy: the policy of a replicated table can't be deleted, only abandoned.
resource "google_bigtable_gc_policy" "raw" {
  project         = var.project
  instance_name   = google_bigtable_instance.main.name
  table           = google_bigtable_table.sensors.name
  column_family   = var.raw_family
  deletion_policy = "ABANDON"

  max_age {
    duration = "${var.raw_max_age_days * 24}h"
  }
}

resource "google_bigtable_gc_policy" "stats" {
  project         = var.project
  instance_name   = google_bigtable_instance.main.name
  table           = google_bigtable_table.sensors.name
  column_family   = var.stats_family
  deletion_policy = "ABANDON"
  mode            = "UNION"

  max_age {
    duration = "${var.stats_max_age_days * 24}h"
  }

  max_version { # a window's row is written again and again; the newest counts
    number = 1
  }
}

resource "google_bigtable_gc_policy" "meta" {
  project         = var.project
  instance_name   = google_bigtable_instance.main.name
  table           = google_bigtable_table.sensors.name
  column_family   = var.meta_family
  deletion_policy = "ABANDON"

  max_age {
    duration = "${var.meta_max_age_days * 24}h"
  }
}

resource "google_bigtable_gc_policy" "latest" {
  project         = var.project
  instance_name   = google_bigtable_instance.main.name
  table           = google_bigtable_table.sensors.name
  column_family   = "latest"
  deletion_policy = "ABANDON"
  mode            = "UNION"

  max_age {
    duration = "17520h" # 730 days
  }

  max_version {
    number = 1
  }
}

# What a team sees of the table. The provider can't grant roles on views: docs/operations.md has the command.
resource "google_bigtable_authorized_view" "team" {
  for_each = var.team_views

  project       = var.project
  instance_name = google_bigtable_instance.main.name
  table_name    = google_bigtable_table.sensors.name
  name          = each.key

  subset_view {
    row_prefixes = [for prefix in each.value.row_prefixes : base64encode(prefix)]

    dynamic "family_subsets" {
      for_each = each.value.families == null ? local.families : each.value.families

      content {
        family_name        = family_subsets.value
        qualifier_prefixes = [""] # all columns
      }
    }
  }
}

locals {
  families = setunion([var.raw_family, var.stats_family, var.meta_family, "latest"], var.more_families)
}
