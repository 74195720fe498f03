variable "project" {
  description = "Project of everything here, by its id."
  type        = string

  validation {
    condition     = can(regex("^[a-z][-a-z0-9:.]{4,61}[a-z0-9]$", var.project))
    error_message = "project must be a project id, like my-project."
  }
}

variable "region" {
  description = "Region of the job and of the staging bucket. Best the region of the (nearest) Bigtable cluster."
  type        = string

  validation {
    condition     = can(regex("^[a-z]+-[a-z]+[0-9]+$", var.region))
    error_message = "region must be a region, like europe-west4, not a zone."
  }
}

variable "name" {
  description = "What every name here begins with. The dashboard and the alerts find their resources by it."
  type        = string
  default     = "tidetable"

  validation {
    condition     = can(regex("^[a-z][-a-z0-9]{0,20}[a-z0-9]$", var.name))
    error_message = "name must be 2 to 22 lower-case letters, digits and hyphens, beginning with a letter."
  }
}

variable "labels" {
  description = "Labels on everything that can carry them."
  type        = map(string)
  default     = {}

  validation {
    condition     = alltrue([for key, value in var.labels : can(regex("^[a-z][-_a-z0-9]{0,62}$", key)) && can(regex("^[-_a-z0-9]{0,63}$", value))])
    error_message = "labels must be lower-case letters, digits, hyphens and underscores, at most 63 of them."
  }
}

# Pub/Sub

variable "inputs" {
  description = <<-EOT
    The topics to read; each has a subscription and a job of its own. "events" has the schema and takes single events
    only. "batches" has none and takes single events and batches alike. A sensor publishes to one of them, always the
    same: each job knows only what it reads itself, and would replace the other's aggregates of that sensor.
  EOT
  type        = set(string)
  default     = ["events"]

  validation {
    condition     = length(var.inputs) > 0 && length(setsubtract(var.inputs, ["events", "batches"])) == 0
    error_message = "inputs must be events, batches or both."
  }
}

variable "ack_deadline_seconds" {
  description = "How long Pub/Sub waits for an acknowledgement. Dataflow extends it as long as a message is in work."
  type        = number
  default     = 60

  validation {
    condition     = var.ack_deadline_seconds >= 10 && var.ack_deadline_seconds <= 600
    error_message = "ack_deadline_seconds must be from 10 to 600."
  }
}

variable "retention_seconds" {
  description = "How long an unread message is kept: the longest time that the job may be away without a loss."
  type        = number
  default     = 604800 # 7 days

  validation {
    condition     = var.retention_seconds >= 86400 && var.retention_seconds <= 2678400
    error_message = "retention_seconds must be from 86400 (a day) to 2678400 (31 days)."
  }
}

variable "dead_letter_retention_seconds" {
  description = "How long an unread dead letter is kept: the time to look at it and to publish it again."
  type        = number
  default     = 1209600 # 14 days

  validation {
    condition     = var.dead_letter_retention_seconds >= 604800 && var.dead_letter_retention_seconds <= 2678400
    error_message = "dead_letter_retention_seconds must be from 604800 (7 days; an alert speaks at 5) to 2678400 (31 days)."
  }
}

# Bigtable

variable "storage_type" {
  description = "SSD, or HDD for archives: a hundredth of the reads a second. It cannot be changed later."
  type        = string
  default     = "SSD"

  validation {
    condition     = contains(["SSD", "HDD"], var.storage_type)
    error_message = "storage_type must be SSD or HDD."
  }
}

variable "clusters" {
  description = <<-EOT
    Clusters of the instance, by id; a second one is a replica. A node takes about 14,000 rows of 1 KB a second on SSD.
    cpu_target: at most 70 for one cluster; with multi-cluster routing at most 35, so that one can carry both.
  EOT
  type = map(object({
    zone       = string
    min_nodes  = optional(number, 1)
    max_nodes  = optional(number, 3)
    cpu_target = optional(number, 60)
  }))

  validation {
    condition     = length(var.clusters) > 0 && alltrue([for id in keys(var.clusters) : can(regex("^[a-z][-a-z0-9]{4,28}[a-z0-9]$", id))])
    error_message = "clusters must hold one cluster at least; an id is 6 to 30 lower-case letters, digits and hyphens."
  }

  validation {
    condition     = alltrue([for cluster in var.clusters : can(regex("^[a-z]+-[a-z]+[0-9]+-[a-z]$", cluster.zone))])
    error_message = "a cluster's zone must be a zone, like europe-west4-a."
  }

  validation {
    condition     = alltrue([for cluster in var.clusters : cluster.min_nodes >= 1 && cluster.max_nodes >= cluster.min_nodes])
    error_message = "a cluster needs 1 <= min_nodes <= max_nodes."
  }

  validation {
    condition     = alltrue([for cluster in var.clusters : cluster.cpu_target >= 10 && cluster.cpu_target <= 80])
    error_message = "a cluster's cpu_target must be from 10 to 80."
  }
}

variable "app_profiles" {
  description = <<-EOT
    Application profiles for readers, by id. With a cluster: all traffic goes there (reads see the writes before them).
    Without one: to the nearest cluster that answers. The job itself writes through the instance's default profile.
  EOT
  type = map(object({
    cluster = optional(string)
  }))
  default = {}

  validation {
    condition     = alltrue([for id in keys(var.app_profiles) : can(regex("^[_a-zA-Z0-9][-_.a-zA-Z0-9]{0,49}$", id)) && id != "default"])
    error_message = "an app profile's id is 1 to 50 letters, digits, hyphens, underscores and dots, and not default."
  }

  validation {
    condition     = alltrue([for profile in var.app_profiles : profile.cluster == null || contains(keys(var.clusters), coalesce(profile.cluster, "none"))])
    error_message = "an app profile's cluster must be one of clusters."
  }
}

variable "table" {
  description = "The table's id."
  type        = string
  default     = "sensors"

  validation {
    condition     = can(regex("^[_A-Za-z0-9][-_.A-Za-z0-9]{0,49}$", var.table))
    error_message = "table must be 1 to 50 letters, digits, hyphens, underscores and dots."
  }
}

variable "raw_family" {
  description = "Column family of readings."
  type        = string
  default     = "raw"

  validation {
    condition     = can(regex("^[-_.A-Za-z0-9]{1,64}$", var.raw_family))
    error_message = "raw_family must be 1 to 64 letters, digits, hyphens, underscores and dots."
  }
}

variable "stats_family" {
  description = "Column family of aggregates."
  type        = string
  default     = "stats"

  validation {
    condition     = can(regex("^[-_.A-Za-z0-9]{1,64}$", var.stats_family))
    error_message = "stats_family must be 1 to 64 letters, digits, hyphens, underscores and dots."
  }
}

variable "meta_family" {
  description = "Column family of metadata."
  type        = string
  default     = "meta"

  validation {
    condition     = can(regex("^[-_.A-Za-z0-9]{1,64}$", var.meta_family))
    error_message = "meta_family must be 1 to 64 letters, digits, hyphens, underscores and dots."
  }

  validation {
    condition     = length(toset([var.raw_family, var.stats_family, var.meta_family, "tidetable"])) == 4
    error_message = "raw_family, stats_family and meta_family must be three different families, none of them tidetable."
  }
}

variable "more_families" {
  description = <<-EOT
    Further column families of the table, for a schema that is not the default one. Whoever stores that schema, with
    tidetable table create --apply, sets their policies too. A family that is not named here or above is dropped.
  EOT
  type        = set(string)
  default     = []

  validation {
    condition     = alltrue([for family in var.more_families : can(regex("^[-_.A-Za-z0-9]{1,64}$", family)) && !contains([var.raw_family, var.stats_family, var.meta_family, "tidetable"], family)])
    error_message = "more_families must be 1 to 64 letters, digits, hyphens, underscores and dots each, and not the families that there are."
  }
}

variable "more_tables" {
  description = <<-EOT
    Further tables of the instance, each with its own schema, to which the same events go. They are made beforehand,
    with tidetable table create --schema; and default_schema is then false.
  EOT
  type        = set(string)
  default     = []

  validation {
    condition     = alltrue([for table in var.more_tables : can(regex("^[_A-Za-z0-9][-_.A-Za-z0-9]{0,49}$", table)) && table != var.table])
    error_message = "more_tables must be 1 to 50 letters, digits, hyphens, underscores and dots each, and not the table."
  }
}

variable "default_schema" {
  description = <<-EOT
    true: the table has the default schema, with the families above. This module makes a table that does not say its
    schema itself, so that it has to be said for it. false: it says it itself, since somebody has stored its schema with
    tidetable table create --apply.
  EOT
  type        = bool
  default     = true
}

variable "raw_max_age_days" {
  description = "Age in days, by the reading's own time, at which a reading is collected."
  type        = number
  default     = 90

  validation {
    condition     = var.raw_max_age_days >= 1 && floor(var.raw_max_age_days) == var.raw_max_age_days
    error_message = "raw_max_age_days must be a whole number of days, 1 at least."
  }
}

variable "stats_max_age_days" {
  description = "Age in days, by the window's start, at which an aggregate is collected."
  type        = number
  default     = 730

  validation {
    condition     = var.stats_max_age_days >= 1 && floor(var.stats_max_age_days) == var.stats_max_age_days
    error_message = "stats_max_age_days must be a whole number of days, 1 at least."
  }
}

variable "meta_max_age_days" {
  description = "Age in days, by the reading's own time, at which metadata is collected."
  type        = number
  default     = 90

  validation {
    condition     = var.meta_max_age_days >= 1 && floor(var.meta_max_age_days) == var.meta_max_age_days
    error_message = "meta_max_age_days must be a whole number of days, 1 at least."
  }
}

variable "deletion_protection" {
  description = "Whether the instance and the table refuse to be deleted. Apply false before a destroy that is meant."
  type        = bool
  default     = true
}

# The job

variable "template_path" {
  description = "The Flex Template's spec, gs://BUCKET/PATH.json. Without it everything but the job is made."
  type        = string
  default     = null

  validation {
    condition     = var.template_path == null || can(regex("^gs://[a-z0-9][-_.a-z0-9]{1,220}[a-z0-9]/.+[.]json$", var.template_path))
    error_message = "template_path must be like gs://my-bucket/templates/tidetable.json."
  }
}

variable "repository" {
  description = "The Artifact Registry repository of the image, in the job's project and region, as long as image is not set."
  type        = string
  default     = "tidetable"

  validation {
    condition     = can(regex("^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$", var.repository))
    error_message = "repository must be 1 to 63 lower-case letters, digits and hyphens, beginning with a letter."
  }
}

variable "image" {
  description = "The image of launcher and workers, in Artifact Registry: REGION-docker.pkg.dev/PROJECT/REPOSITORY/IMAGE:TAG."
  type        = string
  default     = null

  validation {
    condition     = var.image == null || can(regex("^[-a-z0-9]+-docker[.]pkg[.]dev/[^/]+/[^/]+/[^:@]+(:[^:@]+|@sha256:[0-9a-f]{64})$", var.image))
    error_message = "image must be REGION-docker.pkg.dev/PROJECT/REPOSITORY/IMAGE with a :TAG or an @sha256:DIGEST."
  }

  validation {
    condition     = (var.image == null) == (var.template_path == null)
    error_message = "image and template_path belong together: the spec starts that image, and the workers run it too."
  }
}

variable "timestamp_attribute" {
  description = <<-EOT
    Message attribute whose time drives the watermark, like event_time; without it the time of publishing does. With it,
    Dataflow keeps a tracking subscription, for which the job's account gets a role on the project.
  EOT
  type        = string
  default     = null

  validation {
    condition     = var.timestamp_attribute == null || can(regex("^[!-~]{1,256}$", var.timestamp_attribute)) && !startswith(coalesce(var.timestamp_attribute, "none"), "goog")
    error_message = "timestamp_attribute must be the name of an attribute, like event_time."
  }
}

variable "id_attribute" {
  description = "Message attribute by which Dataflow removes redelivered messages, like event_id; without it Pub/Sub's message id."
  type        = string
  default     = null

  validation {
    condition     = var.id_attribute == null || can(regex("^[!-~]{1,256}$", var.id_attribute)) && !startswith(coalesce(var.id_attribute, "none"), "goog")
    error_message = "id_attribute must be the name of an attribute, like event_id."
  }
}

variable "window" {
  description = "Length of the shortest windows that are aggregated; divides a day. Without it: 1h, or as the table's schema says."
  type        = string
  default     = null

  validation {
    condition     = var.window == null || can(regex("^[0-9]{1,9}[smhd]$", var.window))
    error_message = "window must be a whole number and s, m, h or d, like 15m, and divide a day."
  }
}

variable "early_firing" {
  description = "An early pane this often; 0 for none."
  type        = string
  default     = "60s"

  validation {
    condition     = can(regex("^(0|[0-9]{1,9}[smhd])$", var.early_firing))
    error_message = "early_firing must be 0, or a whole number and s, m, h or d, like 60s."
  }
}

variable "late_firing" {
  description = "A late pane this often; 0 for one with each late event."
  type        = string
  default     = "60s"

  validation {
    condition     = can(regex("^(0|[0-9]{1,9}[smhd])$", var.late_firing))
    error_message = "late_firing must be 0, or a whole number and s, m, h or d, like 60s."
  }
}

variable "allowed_lateness" {
  description = "How long behind the watermark a window is kept. State in flight grows with it."
  type        = string
  default     = "1d"

  validation {
    condition     = can(regex("^(0|[0-9]{1,9}[smhd])$", var.allowed_lateness))
    error_message = "allowed_lateness must be 0, or a whole number and s, m, h or d, like 1d."
  }
}

variable "max_future" {
  description = "How far ahead of now an event's time may be."
  type        = string
  default     = "1h"

  validation {
    condition     = can(regex("^(0|[0-9]{1,9}[smhd])$", var.max_future))
    error_message = "max_future must be 0, or a whole number and s, m, h or d, like 1h."
  }
}

variable "deduplicate" {
  description = "on: a reading that comes again counts once in its aggregate; or off."
  type        = string
  default     = "on"

  validation {
    condition     = contains(["on", "off"], var.deduplicate)
    error_message = "deduplicate must be on or off."
  }
}

variable "bigtable_writer" {
  description = "connector: Beam's own; or bulk: faster, and what Bigtable refuses for good becomes a dead letter."
  type        = string
  default     = "connector"

  validation {
    condition     = contains(["connector", "bulk"], var.bigtable_writer)
    error_message = "bigtable_writer must be connector or bulk."
  }
}

variable "app_profile" {
  description = "The app profile that rows are written by, with bigtable_writer = bulk; null for the instance's default one."
  type        = string
  default     = null

  validation {
    condition     = var.app_profile == null || can(regex("^[_a-zA-Z0-9][-_.a-zA-Z0-9]{0,49}$", var.app_profile))
    error_message = "app_profile must be the id of an app profile, like batch-writes."
  }
}

variable "launch_checks" {
  description = "on: the launcher asks for the tables, their schemas and the subscription before there is a job; or off."
  type        = string
  default     = "on"

  validation {
    condition     = contains(["on", "off"], var.launch_checks)
    error_message = "launch_checks must be on or off."
  }
}

variable "at_least_once" {
  description = "At-least-once streaming mode: cheaper; with deduplicate off, a redelivered event may count twice in an aggregate."
  type        = bool
  default     = false
}

variable "machine_type" {
  description = "Machine type of the workers."
  type        = string
  default     = "n2-standard-2"

  validation {
    condition     = can(regex("^[a-z][a-z0-9]*-[-a-z0-9]+$", var.machine_type))
    error_message = "machine_type must be a machine type, like n2-standard-2."
  }
}

variable "max_workers" {
  description = "The most workers that autoscaling may start."
  type        = number
  default     = 5

  validation {
    condition     = var.max_workers >= 1 && var.max_workers <= 1000 && floor(var.max_workers) == var.max_workers
    error_message = "max_workers must be a whole number from 1 to 1000."
  }
}

variable "subnetwork" {
  description = "The workers' subnetwork, regions/REGION/subnetworks/NAME; without it, the network default. It needs Private Google Access."
  type        = string
  default     = null

  validation {
    condition     = var.subnetwork == null || can(regex("(^|/)regions/[^/]+/subnetworks/[^/]+$", var.subnetwork))
    error_message = "subnetwork must be like regions/europe-west4/subnetworks/workers."
  }
}

variable "launchers" {
  description = "Who may start jobs as the job's account, like user:a@example.com or serviceAccount:ci@….iam.gserviceaccount.com."
  type        = set(string)
  default     = []

  validation {
    condition     = alltrue([for member in var.launchers : can(regex("^(user|group|serviceAccount|principal|principalSet):.+$", member))])
    error_message = "launchers must be IAM members, like user:a@example.com."
  }
}

# Monitoring

variable "monitoring" {
  description = "Whether to make the dashboard and the alert policies."
  type        = bool
  default     = true
}

variable "notification_channels" {
  description = "Where alerts go, projects/P/notificationChannels/N. Without one they are incidents in the console only."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for channel in var.notification_channels : can(regex("^projects/[^/]+/notificationChannels/[^/]+$", channel))])
    error_message = "notification_channels must be like projects/my-project/notificationChannels/123."
  }
}
