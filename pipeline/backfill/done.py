"""Notes on this disk which files of a backfill are done, so that one that was interrupted goes on after them.

The notes are a folder with ``done.json`` and the refused records of the files that are done. It is gone when the
backfill has ended: running it again begins anew.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

from apache_beam.io.filesystem import BeamIOError
from apache_beam.io.filesystems import FileSystems

from pipeline.cloud.connection.errors import ServerProblem
from pipeline.formats.lines import one_line

LETTERS = "letters-"
"""The beginning of the names of files with refused records; numbers follow, by which they are in order."""

_FILE = "done.json"


class Done:
    """What a backfill has done.

    Args:
        identity: whatever must be the same for a later run to go on with it: the table, the mappings and the like.

    Raises:
        ServerProblem: another process has the notes: the same backfill is running.

    Attributes:
        folder: the folder of the notes.
        files: the size in bytes and the checksum of each file that is done, by path.
        outcome: the outcome of these files, in JSON; None without any.
    """

    def __init__(self, identity: Iterable[bytes]) -> None:
        digest = blake2b(b"\x00".join(identity), digest_size=10).hexdigest()
        root = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "tidetable"
        self.folder = root / f"backfill-{digest}"
        self._lock_path = self.folder.with_suffix(".lock")
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = self._lock_path.open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._lock.close()
            raise ServerProblem(
                "the same backfill is running; wait until it has ended, and run this one again"
            ) from error
        self.files: dict[str, tuple[int, str]] = {}
        self.outcome: Any = None
        try:
            found = json.loads((self.folder / _FILE).read_text())
            self.files = {path: (size, checksum) for path, (size, checksum) in found["files"].items()}
            self.outcome = found["outcome"]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            self.forget()  # none, or those of another release

    def has(self, path: str, size: int) -> bool:
        """Returns whether a file is done, and has not changed since."""
        known = self.files.get(_absolute(path))
        return known is not None and known == (size, _checksum(path))

    @property
    def letters(self) -> int:
        """The number that follows those of all files with refused records."""
        return max([int(file.name.removeprefix(LETTERS)) + 1 for file in self.folder.glob(f"{LETTERS}*")], default=0)

    def note(self, sizes: Mapping[str, int], outcome: Any, letters: Iterable[Path]) -> None:
        """Notes that files are done.

        Args:
            sizes: the size of each file in bytes, as it was before it was read.
            outcome: the outcome of all files that are done, in JSON.
            letters: files with their refused records, which are moved.
        """
        for path, size in sizes.items():
            if FileSystems.exists(path) and _size(path) == size:
                self.files[_absolute(path)] = size, _checksum(path)
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for file in letters:
            shutil.move(file, self.folder / file.name)
        waiting = self.folder / f"{_FILE}.new"
        waiting.write_text(json.dumps({"files": self.files, "outcome": outcome}))
        waiting.replace(self.folder / _FILE)

    def write_letters(self, target: str) -> None:
        """Writes the refused records of all files to one, local or in a bucket. Replaces an existing one."""
        try:
            with FileSystems.create(target, "text/plain") as file:
                for letters in sorted(self.folder.glob(f"{LETTERS}*")):
                    file.write(letters.read_bytes())
        except (BeamIOError, OSError) as error:
            raise ServerProblem(f"{target}: {getattr(error, 'strerror', None) or one_line(error)}") from error

    def close(self) -> None:
        """Lets another process have the notes."""
        self._lock_path.unlink(missing_ok=True)
        self._lock.close()

    def forget(self) -> None:
        """Deletes the notes."""
        self.files, self.outcome = {}, None
        shutil.rmtree(self.folder, ignore_errors=True)


def _absolute(path: str) -> str:
    return path if "://" in path else str(Path(path).absolute())


def _size(path: str) -> int:
    return (
        int(FileSystems.match([path])[0].metadata_list[0].size_in_bytes) if "://" in path else Path(path).stat().st_size
    )


def _checksum(path: str) -> str:
    if "://" in path:
        return str(FileSystems.checksum(path))
    digest = blake2b(digest_size=16)
    try:
        with Path(path).open("rb") as file:
            while data := file.read(1 << 20):
                digest.update(data)
    except OSError:
        return ""
    return digest.hexdigest()
