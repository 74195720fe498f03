"""Processes that do not outlive ours."""

import subprocess
from collections.abc import Sequence
from typing import Any

# Runs "$@" and sends SIGTERM to its whole process group as soon as standard input has a line or ends.
_WATCHED = """
exec 3<&0 </dev/null
{ read -r _ <&3; kill -TERM 0; } &
exec "$@" 3<&-
"""


def start_watched(command: Sequence[str], **options: Any) -> subprocess.Popen:
    """Starts a command in a session of its own, out of reach of the terminal's Ctrl-C.

    Its standard input is a pipe whose other end is ours: a line in it, or our end, even by SIGKILL, ends the command
    and all that it has started.

    Args:
        command: the program and its arguments.
        options: of :class:`subprocess.Popen`, but for ``stdin`` and ``start_new_session``.
    """
    return subprocess.Popen(
        ["/bin/sh", "-c", _WATCHED, "sh", *command], stdin=subprocess.PIPE, start_new_session=True, **options
    )
