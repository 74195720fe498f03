# Reads the dashboard and the alerts from ../monitoring, in Cloud Monitoring's own format. Replaces the prefix tidetable-
# by var.name, and then the ids of subscriptions that exist already.
locals {
  monitoring = "${path.module}/../monitoring"
  monitored = {
    for file in var.monitoring ? fileset(local.monitoring, "*.json") : [] :
    trimsuffix(file, ".json") => replace(replace(replace(file("${local.monitoring}/${file}"), "tidetable-", "${var.name}-"),
      "\\\"${var.name}-events\\\"", "\\\"${local.subscription_ids["events"]}\\\""),
    "\\\"${var.name}-batches\\\"", "\\\"${local.subscription_ids["batches"]}\\\"")
  }
  alerts = { for name, text in local.monitored : name => jsondecode(text) if startswith(name, "alert-") }
}

resource "google_monitoring_dashboard" "main" {
  count = var.monitoring ? 1 : 0

  project        = var.project
  dashboard_json = local.monitored["dashboard"]
}

resource "google_monitoring_alert_policy" "alert" {
  for_each = local.alerts

  project               = var.project
  display_name          = each.value.displayName
  combiner              = each.value.combiner
  severity              = each.value.severity
  user_labels           = var.labels
  notification_channels = var.notification_channels

  documentation {
    content   = each.value.documentation.content
    mime_type = each.value.documentation.mimeType
  }

  alert_strategy {
    auto_close = each.value.alertStrategy.autoClose
  }

  dynamic "conditions" {
    for_each = each.value.conditions

    content {
      display_name = conditions.value.displayName

      dynamic "condition_threshold" {
        for_each = [for key, condition in conditions.value : condition if key == "conditionThreshold"]

        content {
          filter          = condition_threshold.value.filter
          comparison      = condition_threshold.value.comparison
          threshold_value = condition_threshold.value.thresholdValue
          duration        = condition_threshold.value.duration

          dynamic "aggregations" {
            for_each = condition_threshold.value.aggregations

            content {
              alignment_period     = aggregations.value.alignmentPeriod
              per_series_aligner   = aggregations.value.perSeriesAligner
              cross_series_reducer = aggregations.value.crossSeriesReducer
              group_by_fields      = aggregations.value.groupByFields
            }
          }
        }
      }

      dynamic "condition_prometheus_query_language" {
        for_each = [for key, condition in conditions.value : condition if key == "conditionPrometheusQueryLanguage"]

        content {
          query               = condition_prometheus_query_language.value.query
          duration            = condition_prometheus_query_language.value.duration
          evaluation_interval = condition_prometheus_query_language.value.evaluationInterval
        }
      }
    }
  }
}
