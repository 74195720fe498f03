"""Starts processes that end with this one."""

import subprocess
from collections.abc import Sequence
from typing import Any

# Runs "$@", and sends SIGTERM to its process group when standard input has a line or ends.
_WATCHED = """
exec 3<&0 </dev/null
{ read -r _ <&3; kill -TERM 0; } &
exec "$@" 3<&-
"""


def start_watched(command: Sequence[str], **options: Any) -> subprocess.Popen:
    """Starts a command in its own session, which the terminal's Ctrl-C does not reach.

    Its standard input is a pipe from this process. A line in the pipe, or the end of this process, even by SIGKILL,
    ends the command and all its children.

    Args:
        command: the program and its arguments.
        options: options of :class:`subprocess.Popen` except ``stdin`` and ``start_new_session``.
    """
    return subprocess.Popen(
        ["/bin/sh", "-c", _WATCHED, "sh", *command], stdin=subprocess.PIPE, start_new_session=True, **options
    )
