"""Prices like those of Google's lists, in dollars."""

from pipeline.plan.prices import Prices

LIST = Prices(
    pubsub_tib=40,
    dataflow_vcpu_hour=0.0828,
    dataflow_disk_gib_month=0.04,
    streaming_engine_gib=0.018,
    vm_vcpu_hour=0.0335,
    bigtable_node_hour=0.65,
    bigtable_gib_month=0.17,
)
