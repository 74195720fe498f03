terraform {
  required_version = ">= 1.9" # for validations that refer to more than one variable

  required_providers {
    google = {
      source  = "hashicorp/google"
      version = ">= 7.0, < 8.0" # 7.0 renamed the argument to instance_name in all Bigtable resources
    }
    # Only the beta provider has Flex Template jobs.
    google-beta = {
      source  = "hashicorp/google-beta"
      version = ">= 7.0, < 8.0"
    }
  }
}
