terraform {
  required_version = ">= 1.9" # validations that look at more than one variable

  required_providers {
    google = {
      source  = "hashicorp/google"
      version = ">= 7.0, < 8.0" # 7.0 made instance_name the name of that argument everywhere
    }
    # Flex Template jobs are in the beta provider only.
    google-beta = {
      source  = "hashicorp/google-beta"
      version = ">= 7.0, < 8.0"
    }
  }
}
