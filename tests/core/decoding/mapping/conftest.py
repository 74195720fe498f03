"""Message types of the shapes that fleets send, and what a mapping makes of their messages."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc_tools
import pytest
from grpc_tools import protoc

from pipeline.core.decoding.mapping.compiling.execution import MappedEvents
from pipeline.core.decoding.mapping.compiling.mapper import Mapper
from pipeline.core.decoding.mapping.language.parsing import parse_mapping
from pipeline.core.decoding.mapping.values.descriptors import Descriptors
from pipeline.core.events.event import LATEST_US
from pipeline.core.events.message import Message

PROTOS = Path(__file__).parent / "protos"


@pytest.fixture(scope="session")
def types(tmp_path_factory) -> Descriptors:
    """Every type of the folder ``protos``, as protoc writes them for users."""
    out = tmp_path_factory.mktemp("descriptors") / "types.binpb"
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    arguments = ["--include_imports", f"--descriptor_set_out={out}", *(path.name for path in PROTOS.glob("*.proto"))]
    assert protoc.main(["protoc", f"-I{PROTOS}", f"-I{well_known}", *arguments]) == 0
    return Descriptors(out.read_bytes())


@pytest.fixture(scope="session")
def mapper(types) -> Callable[..., Mapper]:
    """Compiles a mapping that is written in TOML."""
    return lambda text, **options: Mapper(parse_mapping(text), types, **options)


@pytest.fixture(scope="session")
def mapped(mapper) -> Callable[..., MappedEvents]:
    """Makes events of a payload: a protobuf message, fields of one, or JSON as text."""

    def run(
        text: str,
        payload: Any,
        attributes: dict[str, str] | None = None,
        *,
        latest_us: int = LATEST_US,
        metadata_alone: bool = False,
        **envelope: Any,
    ) -> MappedEvents:
        compiled = mapper(text)
        if compiled.message_class is None:
            data = payload.encode()
        else:
            if isinstance(payload, dict):
                payload = compiled.message_class(**payload)
            data = payload.SerializeToString()
        message = Message(data, attributes or {}, **envelope)
        return compiled.map(message, compiled.parse(message), latest_us, metadata_alone=metadata_alone)

    return run
