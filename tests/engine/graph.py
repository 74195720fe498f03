"""The stages of a pipeline, as Dataflow fuses its steps: each begins with a source, a shuffle or a step with state."""

from collections import defaultdict
from dataclasses import dataclass, field

from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_runner_api_pb2

_PAR_DO, _FLATTEN = common_urns.primitives.PAR_DO.urn, common_urns.primitives.FLATTEN.urn
_GROUP, _IMPULSE = common_urns.primitives.GROUP_BY_KEY.urn, common_urns.primitives.IMPULSE.urn
_READ = common_urns.composites.PUBSUB_READ.urn
_PUBLISHES = "WriteToPubSub/ParDo(_PubSubWriteDoFn)"  # Dataflow has a sink of its own in its place


@dataclass
class Plan:
    """The steps of a stage.

    Attributes:
        name: the label of the first step.
        root: the collection that it gets.
        has_state: whether the first step has state.
        is_grouped: whether each element has to come with its key and a list of values.
        begins: whether it gets one empty element when the job begins.
        steps: the steps by id, with those inputs that are made in the stage.
        sinks: the collections that leave the stage, with the tags of the steps' outputs.
        before: the names of the stages from which elements come; empty for the first stage.
    """

    name: str
    root: str
    has_state: bool = False
    is_grouped: bool = False
    begins: bool = False
    steps: dict = field(default_factory=dict)
    sinks: dict = field(default_factory=dict)
    before: set = field(default_factory=set)


class Graph:
    """The stages of a pipeline.

    Attributes:
        proto: the pipeline.
        plans: the plans of the stages by name, each after those from which its elements come.
        next: for each collection that leaves a stage, the names of the stages that get it.
        published: for each collection that is published, the label of what publishes it.
    """

    def __init__(self, proto):
        self.proto, self.plans, self.next, self.published = proto, {}, defaultdict(list), {}
        # A map of a protobuf message has an order of its own in each process.
        steps = {key: step for key, step in sorted(proto.components.transforms.items()) if not step.subtransforms}
        self._consumers = defaultdict(list)
        for key, step in steps.items():
            for collection in dict.fromkeys(step.inputs.values()):
                self._consumers[collection].append((key, step))
        plans = []
        for key, step in steps.items():
            plan = None
            if step.spec.urn in (_READ, _IMPULSE, _GROUP):
                (root,) = step.outputs.values()
                is_grouped, begins = step.spec.urn == _GROUP, step.spec.urn == _IMPULSE
                plan = Plan(step.unique_name, root, is_grouped=is_grouped, begins=begins)
                self._fuse(plan, root)
            elif _has_state(step):
                (root,) = step.inputs.values()
                plan = Plan(step.unique_name, root, has_state=True)
                self._take(plan, key, step)
            if plan is not None:
                plans.append((step, plan))
        for step, plan in plans:
            for collection in step.inputs.values():
                self.next[collection].append(plan.name)
                plan.before = {each.name for _, each in plans if collection in each.sinks}
        waiting = {plan.name: plan for _, plan in plans}
        while waiting:
            for name in [name for name, plan in waiting.items() if not plan.before & waiting.keys()]:
                self.plans[name] = waiting.pop(name)

    def _fuse(self, plan, collection):
        """Adds the steps that get a collection, or lets it leave the stage."""
        consumers = self._consumers[collection]
        for key, step in consumers:
            if _publishes(step):
                self.published[collection] = step.unique_name.split("/")[0]
            elif step.spec.urn in (_PAR_DO, _FLATTEN) and not _has_state(step):
                self._take(plan, key, step)
        if not consumers or any(_ends_stage(step) for _, step in consumers):
            plan.sinks.setdefault(collection, "")

    def _take(self, plan, key, step):
        if key in plan.steps:
            return
        plan.steps[key] = step
        for tag, collection in sorted(step.outputs.items()):
            self._fuse(plan, collection)
            if collection in plan.sinks:
                plan.sinks[collection] = tag


def _ends_stage(step):
    return _publishes(step) or step.spec.urn == _GROUP or _has_state(step)


def _publishes(step):
    return step.unique_name.endswith(_PUBLISHES)


def _has_state(step):
    if step.spec.urn != _PAR_DO:
        return False
    payload = beam_runner_api_pb2.ParDoPayload.FromString(step.spec.payload)
    return bool(payload.state_specs or payload.timer_family_specs)
