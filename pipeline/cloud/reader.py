"""The earlier place of :class:`pipeline.SensorTable`."""

from pipeline.cloud.reading.reader import ForeignRowProblem as ForeignRowProblem
from pipeline.cloud.reading.reader import SensorTable as SensorTable
