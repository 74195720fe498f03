import subprocess
import sys

from pipeline.proto.sensor_event_pb2 import DESCRIPTOR

# Registers a different file called sensor_event.proto, and then ours, in one process.
SCRIPT = """
from google.protobuf import descriptor_pb2, descriptor_pool

file = descriptor_pb2.FileDescriptorProto(name="sensor_event.proto", package="other", syntax="proto3")
file.message_type.add(name="SensorEvent")
descriptor_pool.Default().AddSerializedFile(file.SerializeToString())

from pipeline.proto.sensor_event_pb2 import SensorEvent

print(SensorEvent.DESCRIPTOR.full_name)
"""


def test_registered_under_its_full_path():
    """protobuf knows the file by the path that its package has under protos/."""
    assert DESCRIPTOR.name == "tidetable/v1/sensor_event.proto"
    assert DESCRIPTOR.package == "tidetable.v1"


def test_another_file_of_that_name():
    """A process may also load another package's sensor_event.proto."""
    ran = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "tidetable.v1.SensorEvent\n"), ran.stderr
