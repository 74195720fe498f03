# What each input reads: what exists already, in any project, or what this module creates.
locals {
  new_subscriptions = setsubtract(var.inputs, keys(var.existing_subscriptions))
  new_topics        = setsubtract(local.new_subscriptions, keys(var.existing_topics))

  subscriptions = {
    for input in var.inputs :
    input => lookup(var.existing_subscriptions, input, "projects/${var.project}/subscriptions/${var.name}-${input}")
  }
  # An existing subscription has a topic, which is known only if it is in existing_topics.
  topics = merge(
    { for input in local.new_topics : input => "projects/${var.project}/topics/${var.name}-${input}" },
    var.existing_topics,
  )

  # Where Dataflow creates tracking subscriptions: next to the subscriptions that it reads.
  tracking_projects = toset(var.timestamp_attribute == null ? [] : [for path in values(local.subscriptions) : split("/", path)[1]])

  # The dashboard and the alerts find subscriptions by their ids.
  subscription_ids = { for input in ["events", "batches"] : input => basename(lookup(local.subscriptions, input, "${var.name}-${input}")) }
}
