"""Code that ``make protos`` generates from ``protos/``; not edited by hand.

protobuf registers the file as ``tidetable/v1/sensor_event.proto``. The classes therefore name a module that does not
exist, ``tidetable.v1.sensor_event_pb2``, and do not pickle: what holds a message pickles its bytes.
"""
