"""Reads whole files with a function that users write: for records that need the records before them."""

import io
import logging
from collections.abc import Callable, Generator
from datetime import timedelta
from typing import Any, BinaryIO

from pipeline.core.decoding.user_functions import imported_function, place_of
from pipeline.core.events.event import Event
from pipeline.core.events.reasons import Reason, RefusedMessageError
from pipeline.core.notation.text import error_line
from pipeline.formats.lines import UNREADABLE, Refusal, one_line, parse_or_refuse
from pipeline.formats.values import EventMaker, FileColumns, UnreadableFile, clock_us
from pipeline.proto.sensor_event_pb2 import SensorEvent

_log = logging.getLogger(__name__)


class FileDecoder:
    """A function that users write, of an open file and its name. It pickles as the function's name.

    It yields SensorEvents, and RefusedMessageErrors for records that it can't read. Raises MappingError if this
    environment has no such function, or it takes other arguments.
    """

    def __init__(self, path: str) -> None:
        self.name = path
        self.decode = imported_function(path, (io.BytesIO(), ""), "a file and its name, as f(file, name)")
        self._logged: set[str] = set()  # places whose exceptions were logged

    def __reduce__(self) -> tuple[type["FileDecoder"], tuple[str]]:
        return FileDecoder, (self.name,)

    def failure(self, file: str, error: BaseException) -> str:
        """Returns an exception of the function in one line, with its place. Logs the first of each place."""
        place = place_of(error)
        if place not in self._logged:
            self._logged.add(place)
            _log.error("%s failed on %s", self.name, file, exc_info=error)
        return f"{place}{error_line(error)}"


class DecodingMaker(EventMaker):
    """Makes events of the files that a decoder reads. A record's number is its place among events and refusals."""

    def __init__(
        self,
        decoder: FileDecoder,
        now_us: Callable[[], int] = clock_us,
        max_future: timedelta = timedelta(hours=1),
        *,
        metadata_alone: bool = False,
    ) -> None:
        super().__init__(FileColumns(), now_us, max_future, metadata_alone=metadata_alone)
        self._decoder = decoder

    @property
    def identity(self) -> tuple[object, ...]:
        """See :attr:`EventMaker.identity`."""
        return (self._decoder.name,)

    def records(self, name: str, content: BinaryIO) -> Generator[Event | Refusal]:
        """Yields the events and the refused records of a file.

        An exception of the decoder is a refusal too, and the rest of the file can't be read.

        Args:
            name: the file's path.
            content: the file, decompressed. The decoder can't close it.
        """
        opened, number, stopped = _DecodedFile(content), 0, False
        try:
            for record in self._decoder.decode(io.BufferedReader(opened), name):
                if isinstance(record, SensorEvent):
                    yield parse_or_refuse(number + 1, self._event, record)
                elif isinstance(record, RefusedMessageError):
                    yield _refused(number + 1, record)
                else:
                    raise TypeError(f"it yielded a {type(record).__name__}, not a SensorEvent or RefusedMessageError")
                number += 1
        except (Exception, SystemExit) as error:  # noqa: BLE001 (the decoder's code is the user's)
            stopped = True
            if opened.failure is None and isinstance(error, RefusedMessageError):
                yield _refused(number + 1, error)
            elif opened.failure is None:
                yield Refusal(number + 1, self._decoder.failure(name, error), code=Reason.DECODER_FAILED)
        beyond = f" beyond record {number:,}" if number else ""
        if opened.failure is not None:  # even if the decoder took it for the end of the file
            if not isinstance(opened.failure, UNREADABLE):
                raise opened.failure  # of a server
            raise UnreadableFile(f"can't be read{beyond}: {one_line(opened.failure)}") from opened.failure
        if stopped:
            raise UnreadableFile(f"the decoder {self._decoder.name} read nothing{beyond}")

    def _event(self, yielded: SensorEvent) -> Event:
        return self.checked(yielded)._replace(message=None)  # the decoder may fill the same message again


def _refused(number: int, refusal: RefusedMessageError) -> Refusal:
    return Refusal(number, str(refusal), code=Reason.REFUSED_BY_DECODER, record=refusal.record)


class _DecodedFile(io.RawIOBase):
    """Passes on a file's bytes, and keeps the error that ended them: the decoder may handle it, or raise another."""

    def __init__(self, content: BinaryIO) -> None:
        self._content: Any = content
        self.failure: Exception | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            return self._content.readinto(buffer)
        except Exception as failure:
            self.failure = failure
            raise

    def seekable(self) -> bool:
        return self._content.seekable()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._content.seek(offset, whence)

    def tell(self) -> int:
        return self._content.tell()
