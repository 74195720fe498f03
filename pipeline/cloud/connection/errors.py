"""Errors of Google's servers and clients: which are transient, and a line for each with its remedy."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from google.api_core import exceptions
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError

from pipeline.cloud.connection.names import TableName
from pipeline.cloud.connection.problems import ServerError as ServerError
from pipeline.core.notation.documents import parse_json

TRANSIENT = (
    exceptions.Aborted,  # another request got in the way, or a stream ended early; a new request starts afresh
    exceptions.Cancelled,  # a proxy or server dropped the call as it shut down; no code here cancels its own
    exceptions.DeadlineExceeded,  # a slow server or a lost response; the next attempt has a deadline of its own
    exceptions.ResourceExhausted,  # a quota or an overloaded server, both of which recover; not so a message too large
    exceptions.ServiceUnavailable,  # the connection broke, or the server is restarting or moving a tablet
)
"""Errors that may pass, of any service. INTERNAL may pass only if a stream was reset."""

# Pub/Sub reports transient failures as INTERNAL and UNKNOWN too: Google's publisher retries these same seven
# (google/pubsub_v1/services/publisher/transports/base.py). A needless retry does no harm: publishing, pulling and
# acknowledging again lose nothing. From Bigtable, these two codes mean a bad request or a bug in the server.
PUBSUB_TRANSIENT = (*TRANSIENT, exceptions.InternalServerError, exceptions.Unknown)
"""Errors of Pub/Sub that may pass."""

# How gRPC reports that a connection broke under a stream; any other INTERNAL error comes from the server itself.
_STREAM_RESETS = ("rst_stream", "rst stream", "received unexpected eos on data frame from server")
# How gRPC reports a message beyond its limit, which another attempt does not make smaller.
_TOO_LARGE = "message larger than max"


@contextmanager
def explained(resource: str | TableName) -> Iterator[None]:
    """Turns errors of Google's clients inside the block into :class:`ServerError`.

    Args:
        resource: the requested resource, as the message names it: ``"bucket gs://b"``. If a TableName does not exist,
            the message contains the command that creates it.
    """
    what = f"table {resource}" if isinstance(resource, TableName) else resource
    try:
        yield
    except (DefaultCredentialsError, OSError, AttributeError, RecursionError) as error:
        # Google's library opens the file without handling errors, and takes any JSON for an object, however deep.
        problem = _credentials_problem(error)
        if problem is None:
            raise
        raise ServerError(f"{what}: {problem}") from error
    except GoogleAuthError as error:
        raise ServerError(f"{what}: signing in to Google failed: {_one_line(error)}") from error
    except exceptions.NotFound as error:
        missing = resource.is_missing if isinstance(resource, TableName) else f"{what} does not exist"
        raise ServerError(missing) from error
    except (exceptions.Forbidden, exceptions.Unauthorized) as error:  # by gRPC or by REST
        raise ServerError(f"{what}: permission denied: {_one_line(error)}") from error
    except (exceptions.ServiceUnavailable, exceptions.DeadlineExceeded, exceptions.RetryError) as error:
        raise ServerError(f"{what}: the server cannot be reached: {_one_line(error)}") from error
    except exceptions.GoogleAPICallError as error:
        raise ServerError(f"{what}: {_one_line(error)}") from error


def is_transient(error: exceptions.GoogleAPICallError) -> bool:
    """Whether a later attempt of a Bigtable request may succeed."""
    if isinstance(error, exceptions.InternalServerError):
        return any(text in error.message.lower() for text in _STREAM_RESETS)
    return isinstance(error, TRANSIENT) and not is_too_large(error)


def is_too_large(error: exceptions.GoogleAPICallError) -> bool:
    """Whether gRPC refused a message because of its size."""
    return isinstance(error, exceptions.ResourceExhausted) and _TOO_LARGE in error.message.lower()


def _credentials_problem(error: Exception) -> str | None:
    """Returns the problem with the credentials and its remedy; None if the error has another cause."""
    log_in = "run 'gcloud auth application-default login'"
    file = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    if file and (fault := _fault_of(file, error)):
        return f"GOOGLE_APPLICATION_CREDENTIALS is {file}, which {fault}; correct it, or unset it and {log_in}"
    if not isinstance(error, DefaultCredentialsError):
        return None
    if "were not found" in str(error):
        return (
            f"no Google credentials; {log_in}, or set PUBSUB_EMULATOR_HOST and BIGTABLE_EMULATOR_HOST to use emulators"
        )
    return f"the Google credentials are not valid: {_one_line(error.args[0])}; {log_in}"


def _fault_of(file: str, error: Exception) -> str | None:
    """Returns the fault of a credentials file; None if the file did not cause the error."""
    if isinstance(error, OSError):
        return f"can't be read: {error.strerror}" if error.filename == file else None
    try:
        content = parse_json(Path(file).read_bytes())
    except FileNotFoundError:
        return "does not exist"
    except OSError as unreadable:  # in a folder without permission
        return f"can't be read: {unreadable.strerror}"
    except ValueError:
        content = None
    if not isinstance(content, dict):
        return "is not a file of credentials in JSON"
    # Its last argument is the cause, if it has one.
    return f"is not valid: {_one_line(error.args[-1])}" if isinstance(error, DefaultCredentialsError) else None


def _one_line(error: Exception) -> str:
    text = " ".join(str(getattr(error, "message", "") or error).split())
    return text[:300]
