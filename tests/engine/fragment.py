"""Runs steps of a pipeline in the worker code of Beam's Python SDK, as a runner does: bundle by bundle."""

from contextlib import suppress
from dataclasses import dataclass, field

import apache_beam as beam
from apache_beam.coders import coders
from apache_beam.portability import common_urns
from apache_beam.portability.api import beam_fn_api_pb2, beam_runner_api_pb2
from apache_beam.runners.pipeline_context import PipelineContext
from apache_beam.runners.worker import bundle_processor
from apache_beam.runners.worker.data_plane import ClosableOutputStream, InMemoryDataChannelFactory
from apache_beam.runners.worker.sdk_worker import GlobalCachingStateHandler
from apache_beam.runners.worker.statecache import StateCache
from apache_beam.typehints import KV
from apache_beam.utils.windowed_value import WindowedValue

_URL = "memory"
_PAR_DO = common_urns.primitives.PAR_DO.urn


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


@dataclass
class Done:
    """What a bundle hands to the service: all of it, or what was put out before the worker was lost.

    Attributes:
        outputs: ``(tag, windowed value)``.
        sizes: the bytes of each output, in the same order.
        timers: the timers that were set or cleared, in order.
    """

    outputs: list[tuple[str, WindowedValue]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    timers: list = field(default_factory=list)


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
    """Steps that run in one stage, of which the first may have state and timers.

    Args:
        proto: the pipeline.
        names: the labels of the steps or of what contains them, from the first to the last.
        state: the service's state.
        cache_mb: the size of the worker's cache of state.

    Attributes:
        has_state: whether the first step has state.
        of_watermark: for each of its families of timers, whether the watermark fires them, and not the clock.
    """

    def __init__(self, proto, names, state, cache_mb=0):
        parts = proto.components
        steps = [(key, each) for key, each in parts.transforms.items() if each.spec.urn == _PAR_DO]
        chosen = {key: each for name in names for key, each in steps if f"{each.unique_name}/".startswith(f"{name}/")}
        self._context = PipelineContext(parts)
        self._step, first = next(iter(chosen.items()))
        (self._input,) = first.inputs.values()
        payload = beam_runner_api_pb2.ParDoPayload.FromString(first.spec.payload)
        self.has_state = bool(payload.state_specs)
        self.of_watermark = {
            family: spec.time_domain == beam_runner_api_pb2.TimeDomain.EVENT_TIME
            for family, spec in payload.timer_family_specs.items()
        }
        self._timer_coders = {
            family: self._context.coders.get_by_id(spec.timer_family_coder_id).get_impl()
            for family, spec in payload.timer_family_specs.items()
        }
        descriptor = beam_fn_api_pb2.ProcessBundleDescriptor(id="fragment")
        for name in ("environments", "pcollections", "windowing_strategies"):
            for key, value in getattr(parts, name).items():
                getattr(descriptor, name)[key].CopyFrom(value)
        for key, step in chosen.items():
            descriptor.transforms[key].CopyFrom(step)
        descriptor.timer_api_service_descriptor.url = _URL
        self._coders, self._tags = {}, {}
        self._port(descriptor, "source", self._input, bundle_processor.DATA_INPUT_URN)
        inner = {name for step in chosen.values() for name in step.inputs.values()}
        for step in chosen.values():
            for tag, collection in step.outputs.items():
                if collection not in inner:
                    self._tags[f"sink {collection}"] = tag
                    self._port(descriptor, f"sink {collection}", collection, bundle_processor.DATA_OUTPUT_URN)
        for key, coder in self._context.coders.get_id_to_proto_map().items():
            descriptor.coders[key].CopyFrom(coder)
        self._channel, self._number = _Channel(), 0
        self.state = state
        self._handler = GlobalCachingStateHandler(StateCache(cache_mb << 20), state)
        self._descriptor = descriptor
        self._processor, self._token = None, b"0"

    @classmethod
    def of(cls, fn, state, cache_mb=0):
        """Returns a fragment of one DoFn with state, whose key is a number and whose value is bytes."""
        pipeline = beam.Pipeline()
        keyed = pipeline | beam.Impulse() | beam.Map(_same).with_output_types(KV[int, bytes])
        _ = keyed | "Step" >> beam.ParDo(fn).with_outputs("listed", "results", "rollups", main="main")
        return cls(pipeline.to_runner_api(), ["Step"], state, cache_mb)

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

    def run(self, elements, timers=(), failure=None, fails_after=None, random=None):
        """Runs a bundle. Its state is committed by the caller.

        Args:
            elements: windowed values.
            timers: ``(family, timer)``.
            failure: what ends the bundle: :class:`WorkerLost`, or :class:`StepRaised`, after which the worker goes on
                with what it has in its cache; None for a bundle that ends well.
            fails_after: the number of elements and timers after which it fails; None for a failure when all outputs
                have been made.
            random: decides the order of all; without it, they come as given, and timers last.
        """
        if self._processor is None:
            self._processor = bundle_processor.BundleProcessor(
                frozenset(), self._descriptor, self._handler, InMemoryDataChannelFactory(self._channel)
            )
        channel, self._number = self._channel, self._number + 1
        source, messages = self._coders["source"], beam_fn_api_pb2.Elements
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
        token = beam_fn_api_pb2.ProcessBundleRequest.CacheToken(user_state={}, token=self._token)
        with suppress(WorkerLost, StepRaised), self._handler.process_instruction_id(str(self._number), [token]):
            self._processor.process_bundle(str(self._number))
        if failure is None:
            self._processor.reset()
        else:
            self._processor.shutdown()
            self._processor = None
        return self._done()

    def forget(self):
        """Makes the worker read again what it has in its cache."""
        self._token = b"%d" % self._number

    def _done(self):
        done = Done()
        for name, stream in sorted(self._channel.streams.items(), key=str):  # the SDK has them in any order
            data = stream.get()
            if name in self._tags:
                for value in self._coders[name].decode_all(data):
                    done.outputs.append((self._tags[name], value))
                    done.sizes.append(len(self._coders[name].encode_nested(value)))
            else:
                done.timers += ((name[1], timer) for timer in self._timer_coders[name[1]].decode_all(data))
        return done


def _same(element):
    return element
