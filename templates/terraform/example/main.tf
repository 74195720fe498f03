# A replicated instance, event time from an attribute, and the job. Make the template first:
#
#     make template PROJECT=my-project REGION=europe-west4 REPOSITORY=tidetable
#     terraform -chdir=templates/terraform/example init
#     terraform -chdir=templates/terraform/example apply -var project=my-project -var template_path=gs://… -var image=…

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
  description = "Project of everything here, by its id."
  type        = string
}

variable "template_path" {
  description = "The Flex Template's spec, gs://BUCKET/PATH.json. Without it everything but the job is made."
  type        = string
  default     = null
}

variable "repository" {
  description = "The Artifact Registry repository of the image, in this project and region."
  type        = string
  default     = "tidetable"
}

variable "image" {
  description = "The image of launcher and workers, REGION-docker.pkg.dev/PROJECT/REPOSITORY/IMAGE:TAG."
  type        = string
  default     = null
}

variable "notification_channels" {
  description = "Where alerts go, projects/P/notificationChannels/N."
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
  image         = var.image
  repository    = var.repository
  labels        = { team = "sensors" }

  timestamp_attribute = "event_time"
  id_attribute        = "event_id"

  clusters = {
    sensors-a = { zone = "europe-west4-a", max_nodes = 5, cpu_target = 35 }
    sensors-b = { zone = "europe-west4-b", max_nodes = 5, cpu_target = 35 }
  }

  app_profiles = {
    dashboards = {}                        # the nearest cluster that answers
    repair     = { cluster = "sensors-a" } # reads what it has just written
  }

  notification_channels = var.notification_channels
}

output "topics" {
  description = "Where to publish, by input."
  value       = module.tidetable.topics
}

output "dead_letter_subscription" {
  description = "Where dead letters wait."
  value       = module.tidetable.dead_letter_subscription
}

output "jobs" {
  description = "The Dataflow jobs' ids, by input."
  value       = module.tidetable.jobs
}
