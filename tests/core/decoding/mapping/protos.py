"""Compiles message types for tests."""

import functools
import tempfile
from pathlib import Path

from grpc_tools import protoc

WELL_KNOWN = Path(protoc.__file__).parent / "_proto"


@functools.cache
def descriptor_set(definition: str, *, syntax: str = "proto3") -> bytes:
    """Returns the serialized FileDescriptorSet of the definitions of a .proto file, without its first line."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "test.proto").write_text(f'syntax = "{syntax}";\n{definition}')
        out = Path(folder, "out")
        command = ["protoc", f"-I{folder}", f"-I{WELL_KNOWN}", "--include_imports", f"--descriptor_set_out={out}"]
        assert protoc.main([*command, "test.proto"]) == 0
        return out.read_bytes()
