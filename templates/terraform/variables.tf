variable "project" {
  description = "The project's id."
  type        = string

  validation {
    condition     = can(regex("^[a-z][-a-z0-9:.]{4,61}[a-z0-9]$", var.project))
    error_message = "project must be a project id, like my-project."
  }
}

variable "region" {
  description = "Region of the job and of the staging bucket, preferably that of the nearest Bigtable cluster."
  type        = string

  validation {
    condition     = can(regex("^[a-z]+-[a-z]+[0-9]+$", var.region))
    error_message = "region must be a region, like europe-west4, not a zone."
  }
}

variable "name" {
  description = "Prefix of all resource names. The dashboard and the alerts find their resources by it."
  type        = string
  default     = "tidetable"

  validation {
    condition     = can(regex("^[a-z][-a-z0-9]{0,20}[a-z0-9]$", var.name))
    error_message = "name must be 2 to 22 lower-case letters, digits and hyphens, and start with a letter."
  }
}

variable "labels" {
  description = "Labels of all resources that can have them."
  type        = map(string)
  default     = {}

  validation {
    condition     = alltrue([for key, value in var.labels : can(regex("^[a-z][-_a-z0-9]{0,62}$", key)) && can(regex("^[-_a-z0-9]{0,63}$", value))])
    error_message = "labels must be at most 63 lower-case letters, digits, hyphens and underscores."
  }
}

# Pub/Sub

variable "inputs" {
  description = <<-EOT
    The topics to read; each gets its own subscription and job. "events" has a schema and accepts only single events.
    "batches" has none and accepts single events and batches. A sensor must always publish to the same topic: each job
    knows only what it reads itself, and would replace the other job's aggregates of that sensor.
  EOT
  type        = set(string)
  default     = ["events"]

  validation {
    condition     = length(var.inputs) > 0 && length(setsubtract(var.inputs, ["events", "batches"])) == 0
    error_message = "inputs must be events, batches or both."
  }
}

variable "existing_topics" {
  description = <<-EOT
    Topics that exist already, by input, in any project: { events = "projects/other/topics/readings" }. The module creates
    a subscription to each. The schema of such a topic stays its owner's.
  EOT
  type        = map(string)
  default     = {}

  validation {
    condition     = alltrue([for path in values(var.existing_topics) : can(regex("^projects/[a-z][-a-z0-9:.]{4,61}[a-z0-9]/topics/[A-Za-z][-A-Za-z0-9._~%+]{2,254}$", path))])
    error_message = "existing_topics must be full paths, like projects/my-project/topics/my-topic."
  }

  validation {
    condition     = length(setsubtract(keys(var.existing_topics), var.inputs)) == 0 && length(distinct(values(var.existing_topics))) == length(var.existing_topics)
    error_message = "existing_topics must be for inputs of this module, a topic of its own for each."
  }
}

variable "existing_subscriptions" {
  description = <<-EOT
    Subscriptions that exist already, by input, in any project: { events = "projects/other/subscriptions/readings" }. The
    job must be their only reader. The module then creates neither a topic nor a subscription for the input.
  EOT
  type        = map(string)
  default     = {}

  validation {
    condition     = alltrue([for path in values(var.existing_subscriptions) : can(regex("^projects/[a-z][-a-z0-9:.]{4,61}[a-z0-9]/subscriptions/[A-Za-z][-A-Za-z0-9._~%+]{2,254}$", path))])
    error_message = "existing_subscriptions must be full paths, like projects/my-project/subscriptions/my-subscription."
  }

  validation {
    condition     = length(setsubtract(keys(var.existing_subscriptions), var.inputs)) == 0 && length(distinct(values(var.existing_subscriptions))) == length(var.existing_subscriptions)
    error_message = "existing_subscriptions must be for inputs of this module, a subscription of its own for each."
  }

  validation {
    condition     = var.timestamp_attribute == null || length(setsubtract(keys(var.existing_subscriptions), keys(var.existing_topics))) == 0
    error_message = "existing_subscriptions must have their topics in existing_topics if timestamp_attribute is set: Dataflow's tracking subscription needs a role on the topic."
  }
}

variable "existing_schema" {
  description = <<-EOT
    A schema of Pub/Sub that exists already, for the topic "events" in place of SensorEvent's:
    { name = "projects/other/schemas/reading", encoding = "JSON" }. How its messages become events, message_mappings say.
  EOT
  type = object({
    name     = string
    encoding = optional(string, "BINARY")
  })
  default = null

  validation {
    condition     = var.existing_schema == null || can(regex("^projects/[a-z][-a-z0-9:.]{4,61}[a-z0-9]/schemas/[A-Za-z][-A-Za-z0-9._~%+]{2,254}$", var.existing_schema.name)) && contains(["BINARY", "JSON"], try(var.existing_schema.encoding, ""))
    error_message = "existing_schema must have a name like projects/my-project/schemas/my-schema, and the encoding BINARY or JSON."
  }

  validation {
    condition     = var.existing_schema == null || contains(var.inputs, "events") && !contains(concat(keys(var.existing_topics), keys(var.existing_subscriptions)), "events")
    error_message = "existing_schema must be for a topic events that this module creates: inputs must have events, existing_topics and existing_subscriptions must not."
  }
}

variable "ack_deadline_seconds" {
  description = "How long Pub/Sub waits for an acknowledgement. Dataflow extends this while it processes a message."
  type        = number
  default     = 60

  validation {
    condition     = var.ack_deadline_seconds >= 10 && var.ack_deadline_seconds <= 600
    error_message = "ack_deadline_seconds must be from 10 to 600."
  }
}

variable "retention_seconds" {
  description = "How long Pub/Sub keeps an unread message: the longest time without a job before messages are lost."
  type        = number
  default     = 604800 # 7 days

  validation {
    condition     = var.retention_seconds >= 86400 && var.retention_seconds <= 2678400
    error_message = "retention_seconds must be from 86400 (a day) to 2678400 (31 days)."
  }
}

variable "dead_letter_retention_seconds" {
  description = "How long Pub/Sub keeps an unread dead letter: the time to look at it and to replay it."
  type        = number
  default     = 1209600 # 14 days

  validation {
    condition     = var.dead_letter_retention_seconds >= 604800 && var.dead_letter_retention_seconds <= 2678400
    error_message = "dead_letter_retention_seconds must be from 604800 (7 days; an alert fires at 5) to 2678400 (31 days)."
  }
}

# Bigtable

variable "storage_type" {
  description = "SSD, or HDD for archives, with a hundredth of the reads per second. It can't be changed later."
  type        = string
  default     = "SSD"

  validation {
    condition     = contains(["SSD", "HDD"], var.storage_type)
    error_message = "storage_type must be SSD or HDD."
  }
}

variable "clusters" {
  description = <<-EOT
    Clusters of the instance, by id; a second one is a replica. A node with SSD writes about 14,000 rows of 1 KB per
    second. cpu_target: at most 70 for one cluster. With multi-cluster routing at most 35: one must be able to carry the
    load of both.
  EOT
  type = map(object({
    zone       = string
    min_nodes  = optional(number, 1)
    max_nodes  = optional(number, 3)
    cpu_target = optional(number, 60)
  }))

  validation {
    condition     = length(var.clusters) > 0 && alltrue([for id in keys(var.clusters) : can(regex("^[a-z][-a-z0-9]{4,28}[a-z0-9]$", id))])
    error_message = "clusters needs at least one cluster; an id is 6 to 30 lower-case letters, digits and hyphens."
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
    App profiles, by id. With a cluster, all requests go there, so reads see the writes before them: the job (its
    app_profile), repair and backfill need that. Without a cluster, they go to the nearest available one, for readers.
    Requests of a lower priority than PRIORITY_HIGH, the default, wait while a cluster is busy.
  EOT
  type = map(object({
    cluster  = optional(string)
    priority = optional(string)
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

  validation {
    condition     = alltrue([for profile in var.app_profiles : contains(["PRIORITY_LOW", "PRIORITY_MEDIUM", "PRIORITY_HIGH"], coalesce(profile.priority, "PRIORITY_HIGH"))])
    error_message = "an app profile's priority must be PRIORITY_LOW, PRIORITY_MEDIUM or PRIORITY_HIGH."
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

variable "split_keys" {
  description = "Row keys at which to split a new table, in order. Later changes have no effect: Bigtable then splits by itself."
  type        = list(string)
  default     = []

  validation {
    condition     = length(var.split_keys) <= 255 && var.split_keys == sort(distinct(var.split_keys)) && !contains(var.split_keys, "")
    error_message = "split_keys must be at most 255 different keys, sorted by their bytes."
  }
}

variable "backup_days" {
  description = "How many days Bigtable keeps its daily backups of the table; 0 for no backups."
  type        = number
  default     = 7

  validation {
    condition     = var.backup_days == 0 || (var.backup_days >= 3 && var.backup_days <= 90 && floor(var.backup_days) == var.backup_days)
    error_message = "backup_days must be 0, or a whole number of days from 3 to 90."
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
    condition     = length(toset([var.raw_family, var.stats_family, var.meta_family, "tidetable", "latest"])) == 5
    error_message = "raw_family, stats_family and meta_family must be three different families, none of them tidetable or latest."
  }
}

variable "more_families" {
  description = <<-EOT
    Further column families of the table, for another schema than the default. tidetable table apply, which
    stores that schema, also sets their policies. Terraform drops families that are not listed here or above.
  EOT
  type        = set(string)
  default     = []

  validation {
    condition     = alltrue([for family in var.more_families : can(regex("^[-_.A-Za-z0-9]{1,64}$", family)) && !contains([var.raw_family, var.stats_family, var.meta_family, "tidetable", "latest"], family)])
    error_message = "more_families must be 1 to 64 letters, digits, hyphens, underscores and dots each, and differ from the other families."
  }
}

variable "more_tables" {
  description = <<-EOT
    Further tables of the instance, each with its own schema, to which the job writes the same events. Create them first
    with tidetable table create --schema, and set default_schema to false.
  EOT
  type        = set(string)
  default     = []

  validation {
    condition     = alltrue([for table in var.more_tables : can(regex("^[_A-Za-z0-9][-_.A-Za-z0-9]{0,49}$", table)) && table != var.table])
    error_message = "more_tables must be 1 to 50 letters, digits, hyphens, underscores and dots each, and differ from table."
  }
}

variable "default_schema" {
  description = <<-EOT
    true: declare to the job that the table has the default schema, with the families above. The table that this module
    creates stores no schema. false: the job uses the schema that tidetable table apply stored in the table.
  EOT
  type        = bool
  default     = true
}

variable "raw_max_age_days" {
  description = "Age in days, by event time, at which Bigtable collects readings."
  type        = number
  default     = 90

  validation {
    condition     = var.raw_max_age_days >= 1 && floor(var.raw_max_age_days) == var.raw_max_age_days
    error_message = "raw_max_age_days must be a whole number of days, at least 1."
  }
}

variable "stats_max_age_days" {
  description = "Age in days, by the window's start, at which Bigtable collects aggregates. Of each, it keeps the newest version."
  type        = number
  default     = 730

  validation {
    condition     = var.stats_max_age_days >= 1 && floor(var.stats_max_age_days) == var.stats_max_age_days
    error_message = "stats_max_age_days must be a whole number of days, at least 1."
  }
}

variable "meta_max_age_days" {
  description = "Age in days, by event time, at which Bigtable collects metadata."
  type        = number
  default     = 90

  validation {
    condition     = var.meta_max_age_days >= 1 && floor(var.meta_max_age_days) == var.meta_max_age_days
    error_message = "meta_max_age_days must be a whole number of days, at least 1."
  }
}

variable "deletion_protection" {
  description = "Whether to protect the instance and the table from deletion. Apply false before you destroy them."
  type        = bool
  default     = true
}

# The job

variable "template_path" {
  description = "The Flex Template's spec, gs://BUCKET/PATH.json. If it is not set, no job is created."
  type        = string
  default     = null

  validation {
    condition     = var.template_path == null || can(regex("^gs://[a-z0-9][-_.a-z0-9]{1,220}[a-z0-9]/.+[.]json$", var.template_path))
    error_message = "template_path must be like gs://my-bucket/templates/tidetable.json."
  }
}

variable "repository" {
  description = <<-EOT
    The Artifact Registry repository of the image: a name, if it is in the job's project and region, otherwise
    projects/PROJECT/locations/LOCATION/repositories/NAME. The job's account may pull images from it.
  EOT
  type        = string
  default     = "tidetable"

  validation {
    condition     = can(regex("^(projects/[^/]+/locations/[-a-z0-9]+/repositories/)?[a-z]([-a-z0-9]{0,61}[a-z0-9])?$", var.repository))
    error_message = "repository must be 1 to 63 lower-case letters, digits and hyphens, beginning with a letter, or projects/my-project/locations/europe-west4/repositories/my-repository."
  }
}

variable "timestamp_attribute" {
  description = <<-EOT
    Message attribute with the time that drives the watermark, like event_time. Default: the publish time. If it is set,
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
  description = "Message attribute by which Dataflow removes redelivered messages, like event_id. Default: Pub/Sub's message id."
  type        = string
  default     = null

  validation {
    condition     = var.id_attribute == null || can(regex("^[!-~]{1,256}$", var.id_attribute)) && !startswith(coalesce(var.id_attribute, "none"), "goog")
    error_message = "id_attribute must be the name of an attribute, like event_id."
  }
}

variable "message_mappings" {
  description = <<-EOT
    Local TOML files that say how messages of other types become events; they are copied to the staging bucket. Topics
    with the schema of SensorEvent refuse other types: publish them to the input batches.
  EOT
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for path in var.message_mappings : endswith(path, ".toml")])
    error_message = "message_mappings must be paths of .toml files."
  }
}

variable "message_descriptors" {
  description = <<-EOT
    Where the types of message_mappings are declared: local files, each a FileDescriptorSet as protoc --include_imports
    --descriptor_set_out writes it, or schemas of Pub/Sub, projects/PROJECT/schemas/NAME. JSON needs none.
  EOT
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for path in var.message_descriptors : !startswith(path, "projects/") || can(regex("^projects/[^/@,]+/schemas/[^/@,]+$", path))])
    error_message = "message_descriptors must be local files, or schemas like projects/my-project/schemas/my-schema."
  }
}

variable "message_decoder" {
  description = "MODULE:FUNCTION, a function in the template's image that decodes messages without a mapping."
  type        = string
  default     = null

  validation {
    condition     = var.message_decoder == null || can(regex("^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*$", var.message_decoder))
    error_message = "message_decoder must be MODULE:FUNCTION, like acme.messages:decode."
  }
}

variable "default_message_type" {
  description = "Type of messages without the attribute message_type. Default: SensorEvent; none with mappings or a decoder."
  type        = string
  default     = null

  validation {
    condition     = var.default_message_type == null || can(regex("^[A-Za-z_][A-Za-z0-9_.]*$", var.default_message_type))
    error_message = "default_message_type must be the full name of a type, like acme.v1.Report."
  }
}

variable "unknown_fields" {
  description = "count: fields that SensorEvent does not have are counted. refuse: such events become dead letters."
  type        = string
  default     = "count"

  validation {
    condition     = contains(["count", "refuse"], var.unknown_fields)
    error_message = "unknown_fields must be count or refuse."
  }
}

variable "window" {
  description = "Length of the shortest aggregated windows; must divide a day. Default: that of the table's schema, 1h in the default schema."
  type        = string
  default     = null

  validation {
    condition     = var.window == null || can(regex("^[0-9]{1,9}[smhd]$", var.window))
    error_message = "window must be a whole number and s, m, h or d, like 15m, and divide a day."
  }
}

variable "early_firing" {
  description = "Interval of early panes of an open window; 60s for fresher rows, 0 for none."
  type        = string
  default     = "5m"

  validation {
    condition     = can(regex("^(0|[0-9]{1,9}[smhd])$", var.early_firing))
    error_message = "early_firing must be 0, or a whole number and s, m, h or d, like 5m."
  }
}

variable "late_firing" {
  description = "Interval of panes for late events, and of recomputing closed windows; 0 does both at once."
  type        = string
  default     = "60s"

  validation {
    condition     = can(regex("^(0|[0-9]{1,9}[smhd])$", var.late_firing))
    error_message = "late_firing must be 0, or a whole number and s, m, h or d, like 60s."
  }
}

variable "allowed_lateness" {
  description = "How long a window is kept in state after the watermark passes its end. For later events, it is recomputed from its raw rows. The job's state grows with it."
  type        = string
  default     = "10m"

  validation {
    condition     = can(regex("^(0|[0-9]{1,9}[smhd])$", var.allowed_lateness))
    error_message = "allowed_lateness must be 0, or a whole number and s, m, h or d, like 10m."
  }
}

variable "newest_every" {
  description = "Least time between two rows of a sensor's newest readings, beside panes; 0 writes them with raw rows."
  type        = string
  default     = "0"

  validation {
    condition     = can(regex("^(0|[0-9]{1,9}[smhd])$", var.newest_every))
    error_message = "newest_every must be 0, or a whole number and s, m, h or d, like 1m."
  }
}

variable "max_future" {
  description = "How far an event time may lie in the future."
  type        = string
  default     = "1h"

  validation {
    condition     = can(regex("^(0|[0-9]{1,9}[smhd])$", var.max_future))
    error_message = "max_future must be 0, or a whole number and s, m, h or d, like 1h."
  }
}

variable "bigtable_writer" {
  description = "connector: Beam's connector. bulk: a faster writer, which turns a row that Bigtable refuses permanently into a dead letter."
  type        = string
  default     = "connector"

  validation {
    condition     = contains(["connector", "bulk"], var.bigtable_writer)
    error_message = "bigtable_writer must be connector or bulk."
  }
}

variable "app_profile" {
  description = "App profile of the job's reads and writes. With several clusters, one with a cluster. Default: the instance's default profile."
  type        = string
  default     = null

  validation {
    condition     = var.app_profile == null || can(regex("^[_a-zA-Z0-9][-_.a-zA-Z0-9]{0,49}$", var.app_profile))
    error_message = "app_profile must be the id of an app profile, like batch-writes."
  }
}

variable "launch_checks" {
  description = "on: the launcher checks the tables, their schemas, the subscription and the topics before the job starts. off: no checks."
  type        = string
  default     = "on"

  validation {
    condition     = contains(["on", "off"], var.launch_checks)
    error_message = "launch_checks must be on or off."
  }
}

variable "at_least_once" {
  description = "Whether to use at-least-once streaming mode: cheaper, and dead letters may come twice."
  type        = bool
  default     = false
}

variable "launcher_machine_type" {
  description = "Machine type of the launcher, which runs for minutes. Default: Dataflow's, n1-standard-1. The workers' machine type is the template's: make template MACHINE_TYPE=n2-standard-4."
  type        = string
  default     = null

  validation {
    condition     = var.launcher_machine_type == null || can(regex("^[a-z][a-z0-9]*-[-a-z0-9]+$", var.launcher_machine_type))
    error_message = "launcher_machine_type must be a machine type, like n2-standard-2."
  }
}

variable "min_workers" {
  description = "The fewest workers that autoscaling may keep. The most is the template's: make template MAX_WORKERS=10."
  type        = number
  default     = 1

  validation {
    condition     = var.min_workers >= 1 && var.min_workers <= 1000 && floor(var.min_workers) == var.min_workers
    error_message = "min_workers must be a whole number from 1 to 1000."
  }
}

variable "service_options" {
  description = "Further service options of Dataflow, like worker_utilization_hint=0.7 or enable_google_cloud_profiler."
  type        = set(string)
  default     = []

  validation {
    condition     = alltrue([for option in var.service_options : can(regex("^[a-z][a-z0-9_]*(=[^ ,]+)?$", option)) && !startswith(option, "min_num_workers")])
    error_message = "service_options must be like worker_utilization_hint=0.7; min_workers has a variable of its own."
  }
}

variable "private" {
  description = "Whether workers have no public addresses: they connect only to Google's services. Their subnetwork needs Private Google Access."
  type        = bool
  default     = true
}

variable "kms_key" {
  description = <<-EOT
    A key that encrypts what is stored: the job's state, messages, tables and staged files. It must be in the region of
    the job and of every cluster. Instance and bucket can't change their key later. Default: Google's own keys.
  EOT
  type        = string
  default     = null

  validation {
    condition     = var.kms_key == null || can(regex("^projects/[^/]+/locations/${var.region}/keyRings/[^/]+/cryptoKeys/[^/]+$", var.kms_key))
    error_message = "kms_key must be in the job's region: projects/my-project/locations/REGION/keyRings/my-ring/cryptoKeys/my-key."
  }

  validation {
    condition     = var.kms_key == null || alltrue([for cluster in var.clusters : startswith(cluster.zone, "${var.region}-")])
    error_message = "kms_key encrypts every cluster, so all clusters must be in the key's region."
  }
}

variable "subnetwork" {
  description = <<-EOT
    The workers' subnetwork, in the job's region: regions/REGION/subnetworks/NAME, or
    projects/PROJECT/regions/REGION/subnetworks/NAME for a Shared VPC. With private addresses it needs Private Google
    Access, which the default network's does not have. Default: that of the default network.
  EOT
  type        = string
  default     = null

  validation {
    condition     = var.subnetwork == null || can(regex("(^|/)regions/${var.region}/subnetworks/[^/]+$", var.subnetwork))
    error_message = "subnetwork must be in the job's region, like regions/europe-west4/subnetworks/workers."
  }
}

variable "launchers" {
  description = "IAM members that may start jobs as the job's account, like user:a@example.com or serviceAccount:ci@….iam.gserviceaccount.com."
  type        = set(string)
  default     = []

  validation {
    condition     = alltrue([for member in var.launchers : can(regex("^(user|group|serviceAccount|principal|principalSet):.+$", member))])
    error_message = "launchers must be IAM members, like user:a@example.com."
  }
}

# Readers

variable "readers" {
  description = "IAM members that may read the tables, like group:analysts@example.com. They see every row."
  type        = set(string)
  default     = []

  validation {
    condition     = alltrue([for member in var.readers : can(regex("^(user|group|serviceAccount|domain|principal|principalSet):.+$", member))])
    error_message = "readers must be IAM members, like group:analysts@example.com."
  }
}

variable "team_views" {
  description = <<-EOT
    Authorized views of the table, by id: the rows whose keys begin with one of row_prefixes, and the cells of the
    families, by default all but those of the schema and of alerts. docs/operations.md says how to grant a team its view.
  EOT
  type = map(object({
    row_prefixes = list(string)
    families     = optional(set(string))
  }))
  default = {}

  validation {
    condition     = alltrue([for id in keys(var.team_views) : can(regex("^[_a-zA-Z0-9][-_.a-zA-Z0-9]{0,49}$", id))])
    error_message = "the id of a view in team_views must be 1 to 50 letters, digits, hyphens, underscores and dots."
  }

  validation {
    condition     = alltrue([for view in values(var.team_views) : length(view.row_prefixes) > 0 && !contains(view.row_prefixes, "") && try(length(view.families) > 0, true)])
    error_message = "team_views must have row_prefixes, none of which is empty, and families, if any are named."
  }

  validation {
    condition     = alltrue([for view in values(var.team_views) : length(setsubtract(coalesce(view.families, []), setunion([var.raw_family, var.stats_family, var.meta_family, "latest"], var.more_families))) == 0])
    error_message = "the families of team_views must be families of the table's readings, aggregates and metadata."
  }
}

# Alerts

variable "publish_alerts" {
  description = "Whether the jobs watch readings by the rules that the table stores, and publish alerts to a topic. The table needs a family of alerts first, which tidetable alerts apply adds."
  type        = bool
  default     = false
}

# Results

variable "publish_results" {
  description = "Whether the jobs publish results of finished windows to a topic."
  type        = bool
  default     = false
}

variable "results_to_bigquery" {
  description = "Whether results go to BigQuery: a dataset with a table, which Pub/Sub writes, and a view of the newest result of each window. Implies publish_results."
  type        = bool
  default     = false
}

variable "results" {
  description = "final: a result when its window is over, and one for each correction. all: early panes too."
  type        = string
  default     = "final"

  validation {
    condition     = var.results == "final" || (var.results == "all" && (var.publish_results || var.results_to_bigquery))
    error_message = "results must be final, or all with publish_results or results_to_bigquery."
  }
}

variable "results_encoding" {
  description = "protobuf: tidetable.v1.WindowResult, with its schema on the topic. json: its JSON form."
  type        = string
  default     = "protobuf"

  validation {
    condition     = var.results_encoding == "protobuf" || (var.results_encoding == "json" && var.publish_results && !var.results_to_bigquery)
    error_message = "results_encoding must be protobuf, as BigQuery needs it, or json with publish_results alone."
  }
}

variable "results_days" {
  description = "The days after which BigQuery deletes results. Default: it keeps them."
  type        = number
  default     = null

  validation {
    condition     = var.results_days == null || try(var.results_days >= 1 && floor(var.results_days) == var.results_days, false)
    error_message = "results_days must be a whole number of days, at least 1."
  }
}

# Monitoring

variable "monitoring" {
  description = "Whether to create the dashboard and the alert policies."
  type        = bool
  default     = true
}

variable "notification_channels" {
  description = "Notification channels of the alerts, projects/P/notificationChannels/N. Without any, alerts appear only in the console."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for channel in var.notification_channels : can(regex("^projects/[^/]+/notificationChannels/[^/]+$", channel))])
    error_message = "notification_channels must be like projects/my-project/notificationChannels/123."
  }
}
