"""Runs steps of a pipeline in the worker code of Beam's Python SDK, as a runner does: bundle by bundle."""

from dataclasses import dataclass, field
from typing import NamedTuple
from unittest import mock

import apache_beam as beam
from apache_beam.coders import coders
from apache_beam.portability.api import beam_fn_api_pb2, beam_runner_api_pb2
from apache_beam.runners.pipeline_context import PipelineContext
from apache_beam.runners.worker import bundle_processor, statesampler
from apache_beam.runners.worker.data_plane import ClosableOutputStream, InMemoryDataChannelFactory
from apache_beam.runners.worker.sdk_worker import GlobalCachingStateHandler
from apache_beam.typehints import KV
from apache_beam.utils.windowed_value import WindowedValue

from tests.engine.graph import Graph

_URL = "memory"
_CLOCKS = []


def set_clock(of_now):
    """Makes a function the clock of all workers."""
    _CLOCKS[:] = [of_now]


def clock():
    """Returns the time: workers have copies of DoFns, which refer to this function."""
    return _CLOCKS[0]()


class WorkerLost(Exception):
    """The worker is lost amid a bundle."""


class StepRaised(Exception):
    """A step raises, amid a bundle or at its end."""


class Output(NamedTuple):
    """An element that leaves a stage: the tag of its step's output, the element, and its collection."""

    tag: str
    value: WindowedValue
    collection: str


@dataclass
class Done:
    """What a bundle hands to the service: all of it, or what was put out before the worker was lost.

    Attributes:
        outputs: the elements.
        sizes: the bytes of each output, in the same order.
        timers: the timers that were set or cleared, in order.
    """

    outputs: list[Output] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    timers: list = field(default_factory=list)


class _Sampler(statesampler.StateSampler):
    """Knows the current step. It takes no samples, for which the SDK starts a thread in each bundle."""

    def start(self):
        statesampler.set_current_tracker(self)

    def stop(self):
        statesampler.set_current_tracker(None)


class _Channel:
    """The data plane of one bundle at a time."""

    def __init__(self):
        self.inputs, self.streams, self.fails_after, self.failure = [], {}, None, None

    def input_elements(self, instruction_id, expected_inputs, abort_callback=None):
        yield from self.inputs[: self.fails_after]
        if self.failure is not None and self.fails_after is not None:
            raise self.failure

    def output_stream(self, instruction_id, transform_id):
        stream = self.streams[transform_id] = ClosableOutputStream(self._close)
        return stream

    def _close(self, _):
        """Raises like the ``finish_bundle`` of a step fused after one with state, which has sent its changes."""
        if self.failure is not None:
            raise self.failure

    def output_timer_stream(self, instruction_id, transform_id, timer_family_id):
        return self.output_stream(instruction_id, (transform_id, timer_family_id))


class Fragment:
    """The steps of a stage, of which the first may have state and timers.

    Args:
        graph: the pipeline, as a :class:`tests.engine.graph.Graph`.
        plan: the stage's plan.
        state: the service's state.

    Attributes:
        has_state: whether the first step has state.
        is_grouped: whether each element has to come with its key and a list of values.
        of_watermark: for each of its families of timers, whether the watermark fires them, and not the clock.
    """

    def __init__(self, graph, plan, state):
        self.name, self.has_state, self.is_grouped, self.state = plan.name, plan.has_state, plan.is_grouped, state
        parts = graph.proto.components
        self._context = PipelineContext(parts, namespace="engine")
        self._step = next(iter(plan.steps)) if plan.has_state else None
        specs = {}
        if plan.has_state:
            payload = plan.steps[self._step].spec.payload
            specs = beam_runner_api_pb2.ParDoPayload.FromString(payload).timer_family_specs
        self.of_watermark = {
            family: spec.time_domain == beam_runner_api_pb2.TimeDomain.EVENT_TIME for family, spec in specs.items()
        }
        self._timer_coders = {
            family: self._context.coders.get_by_id(spec.timer_family_coder_id).get_impl()
            for family, spec in specs.items()
        }
        descriptor = beam_fn_api_pb2.ProcessBundleDescriptor(id=plan.name)
        for name in ("environments", "pcollections", "windowing_strategies"):
            for key, value in getattr(parts, name).items():
                getattr(descriptor, name)[key].CopyFrom(value)
        made = {plan.root, *(each for step in plan.steps.values() for each in step.outputs.values())}
        for key, step in plan.steps.items():
            descriptor.transforms[key].CopyFrom(step)
            for name, collection in step.inputs.items():
                if collection not in made:  # another stage runs this step too
                    del descriptor.transforms[key].inputs[name]
        descriptor.timer_api_service_descriptor.url = _URL
        self._coders, self._sinks = {}, {f"sink {collection}": collection for collection in plan.sinks}
        self._tags = plan.sinks
        self._port(descriptor, "source", plan.root, bundle_processor.DATA_INPUT_URN)
        for name, collection in self._sinks.items():
            self._port(descriptor, name, collection, bundle_processor.DATA_OUTPUT_URN)
        for key, coder in self._context.coders.get_id_to_proto_map().items():
            descriptor.coders[key].CopyFrom(coder)
        self._channel, self._number = _Channel(), 0
        self._descriptor = descriptor

    @classmethod
    def of(cls, fn, state):
        """Returns a fragment of one DoFn with state, whose key is a number and whose value is bytes."""
        pipeline = beam.Pipeline()
        keyed = pipeline | beam.Impulse() | beam.Map(_same).with_output_types(KV[int, bytes])
        _ = keyed | "Step" >> beam.ParDo(fn).with_outputs("listed", "results", "rollups", "dead_letters", main="main")
        graph = Graph(pipeline.to_runner_api())
        return cls(graph, next(plan for plan in graph.plans.values() if plan.has_state), state)

    def _port(self, descriptor, name, collection, urn):
        """Adds a step that receives or sends the elements of a collection."""
        of_collection = self._context.pcollections.get_by_id(collection)
        windows = of_collection.windowing.windowfn.get_window_coder()
        elements = self._context.coders.get_by_id(descriptor.pcollections[collection].coder_id)
        coder = coders.WindowedValueCoder(elements, windows)
        self._coders[name] = coder.get_impl()
        coder_id = self._context.coders.get_id(coder)
        port = beam_fn_api_pb2.RemoteGrpcPort(coder_id=coder_id, api_service_descriptor={"url": _URL})
        of_port = descriptor.transforms[name]
        of_port.unique_name = name
        of_port.spec.urn, of_port.spec.payload = urn, port.SerializeToString()
        (of_port.outputs if urn == bundle_processor.DATA_INPUT_URN else of_port.inputs)["only"] = collection

    def run(self, worker, token, elements, timers=(), failure=None, fails_after=None, random=None):
        """Runs a bundle. Its state is committed by the caller.

        Args:
            worker: the worker.
            token: the token with which the worker keeps state in its cache.
            elements: windowed values.
            timers: ``(family, timer)``.
            failure: what ends the bundle: :class:`WorkerLost`, or :class:`StepRaised`, after which the worker goes on
                with what it has in its cache; None for a bundle that ends well.
            fails_after: the number of elements and timers after which it fails; None for a failure when all outputs
                have been made.
            random: decides the order of all; without it, they come as given, and timers last.
        """
        channel, self._number = self._channel, self._number + 1
        source, messages = self._coders["source"], beam_fn_api_pb2.Elements
        if self.is_grouped:
            elements = [each.with_value((each.value[0], [each.value[1]])) for each in elements]
        data = [messages.Data(transform_id="source", data=source.encode_nested(each)) for each in elements]
        fired = [
            messages.Timers(
                transform_id=self._step,
                timer_family_id=family,
                timers=self._timer_coders[family].encode_nested(timer),
            )
            for family, timer in timers
        ]
        channel.inputs = [*data, *fired]
        if random is not None:
            random.shuffle(channel.inputs)
        channel.streams, channel.fails_after, channel.failure = {}, fails_after, failure
        token = beam_fn_api_pb2.ProcessBundleRequest.CacheToken(user_state={}, token=token)
        with worker.running():
            handler, processor = self._processor_of(worker)
            try:
                with handler.process_instruction_id(str(self._number), [token]):
                    processor.process_bundle(str(self._number))
                processor.reset()
            except BaseException as error:
                del worker.processors[self]
                processor.shutdown()
                if failure is None or not isinstance(error, failure):
                    raise
        return self._done()

    def _processor_of(self, worker):
        if self not in worker.processors:
            handler = GlobalCachingStateHandler(worker.cache, self.state)
            channels = InMemoryDataChannelFactory(self._channel)
            with mock.patch.object(statesampler, "StateSampler", _Sampler):
                processor = bundle_processor.BundleProcessor(frozenset(), self._descriptor, handler, channels)
            worker.processors[self] = handler, processor
        return worker.processors[self]

    def _done(self):
        done = Done()
        for name, stream in sorted(self._channel.streams.items(), key=str):  # the SDK has them in any order
            data = stream.get()
            if name in self._sinks:
                collection = self._sinks[name]
                for value in self._coders[name].decode_all(data):
                    done.outputs.append(Output(self._tags[collection], value, collection))
                    done.sizes.append(len(self._coders[name].encode_nested(value)))
            else:
                done.timers += ((name[1], timer) for timer in self._timer_coders[name[1]].decode_all(data))
        return done


def _same(element):
    return element
