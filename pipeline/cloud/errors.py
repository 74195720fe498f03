"""What Google's servers and clients refuse, told in one line with what to do about it."""

from collections.abc import Iterator
from contextlib import contextmanager

from google.api_core import exceptions
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError

# How gRPC tells that a connection broke down under a stream; any other INTERNAL error is the server's own.
_STREAM_RESETS = ("rst_stream", "rst stream", "received unexpected eos on data frame from server")


class ServerProblem(Exception):
    """A server that is missing something, out of reach, or unwilling. ``str()`` is one line for a person."""


@contextmanager
def explained(what: str) -> Iterator[None]:
    """Turns the errors of Google's clients inside the block into :class:`ServerProblem`.

    Args:
        what: the resource that is being asked for, as the message names it:
            ``"table projects/p/instances/i/tables/t"``.
    """
    try:
        yield
    except DefaultCredentialsError as error:
        raise ServerProblem(
            f"{what}: no Google credentials; run 'gcloud auth application-default login', "
            "or set PUBSUB_EMULATOR_HOST and BIGTABLE_EMULATOR_HOST to use emulators"
        ) from error
    except GoogleAuthError as error:
        raise ServerProblem(f"{what}: signing in to Google failed: {_one_line(error)}") from error
    except exceptions.NotFound as error:
        raise ServerProblem(f"{what} does not exist") from error
    except (exceptions.PermissionDenied, exceptions.Unauthenticated) as error:
        raise ServerProblem(f"{what}: permission denied: {_one_line(error)}") from error
    except (exceptions.ServiceUnavailable, exceptions.DeadlineExceeded, exceptions.RetryError) as error:
        raise ServerProblem(f"{what}: the server cannot be reached: {_one_line(error)}") from error
    except exceptions.GoogleAPICallError as error:
        raise ServerProblem(f"{what}: {_one_line(error)}") from error


def is_stream_reset(error: exceptions.GoogleAPICallError) -> bool:
    """Whether an INTERNAL error tells that a connection broke down, which passes."""
    return any(text in error.message.lower() for text in _STREAM_RESETS)


def _one_line(error: Exception) -> str:
    text = " ".join(str(getattr(error, "message", "") or error).split())
    return text[:300]
