from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WindowResult(_message.Message):
    __slots__ = ("sensor_id", "tier", "window_start", "window_end", "kind", "reading_count", "metrics", "event_id", "version")
    SENSOR_ID_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    WINDOW_START_FIELD_NUMBER: _ClassVar[int]
    WINDOW_END_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    READING_COUNT_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    EVENT_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    sensor_id: str
    tier: str
    window_start: str
    window_end: str
    kind: str
    reading_count: int
    metrics: _containers.RepeatedCompositeFieldContainer[MetricResult]
    event_id: str
    version: int
    def __init__(self, sensor_id: _Optional[str] = ..., tier: _Optional[str] = ..., window_start: _Optional[str] = ..., window_end: _Optional[str] = ..., kind: _Optional[str] = ..., reading_count: _Optional[int] = ..., metrics: _Optional[_Iterable[_Union[MetricResult, _Mapping]]] = ..., event_id: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class MetricResult(_message.Message):
    __slots__ = ("metric", "count", "statistics", "coverage", "unit", "label")
    METRIC_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    COVERAGE_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    metric: str
    count: int
    statistics: _containers.RepeatedCompositeFieldContainer[StatisticResult]
    coverage: float
    unit: str
    label: str
    def __init__(self, metric: _Optional[str] = ..., count: _Optional[int] = ..., statistics: _Optional[_Iterable[_Union[StatisticResult, _Mapping]]] = ..., coverage: _Optional[float] = ..., unit: _Optional[str] = ..., label: _Optional[str] = ...) -> None: ...

class StatisticResult(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: float
    def __init__(self, name: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
