# A replicated instance, event time from an attribute, and the job. Publish the template first:
#
#     make template PROJECT=my-project REGION=europe-west4 REPOSITORY=tidetable
#     terraform -chdir=templates/terraform/example init
#     terraform -chdir=templates/terraform/example apply -var project=my-project -var template_path=gs://…

terraform {
  required_version = ">= 1.9"

  required_providers {
    google = {
      source  = "hashicorp/google"
      version = ">= 7.0, < 8.0"
    }
    google-beta = {
      source  = "hashicorp/google-beta"
      version = ">= 7.0, < 8.0"
    }
  }
}

variable "project" {
  description = "The project's id."
  type        = string
}

variable "template_path" {
  description = "The Flex Template's spec, gs://BUCKET/PATH.json. If it is not set, no job is created."
  type        = string
  default     = null
}

variable "repository" {
  description = "The Artifact Registry repository of the image, in this project and region."
  type        = string
  default     = "tidetable"
}

variable "subnetwork" {
  description = "The workers' subnetwork, regions/europe-west4/subnetworks/NAME, with Private Google Access. Default: that of the default network."
  type        = string
  default     = null
}

variable "notification_channels" {
  description = "Notification channels of the alerts, projects/P/notificationChannels/N."
  type        = list(string)
  default     = []
}

provider "google" {
  project = var.project
  region  = "europe-west4"
}

provider "google-beta" {
  project = var.project
  region  = "europe-west4"
}

module "tidetable" {
  source = "../"

  project       = var.project
  region        = "europe-west4"
  template_path = var.template_path
  repository    = var.repository
  subnetwork    = var.subnetwork
  labels        = { team = "sensors" }

  timestamp_attribute = "event_time"
  id_attribute        = "event_id"

  clusters = {
    sensors-a = { zone = "europe-west4-a", max_nodes = 5, cpu_target = 35 }
    sensors-b = { zone = "europe-west4-b", max_nodes = 5, cpu_target = 35 }
  }

  app_profiles = {
    dashboards = {}                                                   # the nearest available cluster
    job        = { cluster = "sensors-a" }                            # one cluster, so that reads see the writes before them
    repair     = { cluster = "sensors-a", priority = "PRIORITY_LOW" } # the same cluster, after the job's requests
  }

  app_profile = "job"

  notification_channels = var.notification_channels
}

output "topics" {
  description = "The topics to publish to, by input."
  value       = module.tidetable.topics
}

output "dead_letter_subscription" {
  description = "The subscription that stores dead letters."
  value       = module.tidetable.dead_letter_subscription
}

output "jobs" {
  description = "The Dataflow jobs' ids, by input."
  value       = module.tidetable.jobs
}
