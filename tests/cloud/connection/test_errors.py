"""Which errors of Google's servers and clients are worth another attempt."""

import re
from pathlib import Path

import google.auth
import pytest
from google.api_core.exceptions import from_grpc_status
from grpc import StatusCode

from pipeline.cloud.connection.errors import (
    PUBSUB_TRANSIENT,
    TRANSIENT,
    ServerError,
    explained,
    is_too_large,
    is_transient,
)

PASSING = ["ABORTED", "CANCELLED", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "UNAVAILABLE"]


def with_code(kinds: tuple[type[Exception], ...]) -> list[str]:
    return sorted(code.name for code in StatusCode if isinstance(from_grpc_status(code, ""), kinds))


def test_transient_codes() -> None:
    """Five codes pass with any service; Pub/Sub has two more."""
    assert with_code(TRANSIENT) == PASSING
    assert with_code(PUBSUB_TRANSIENT) == sorted([*PASSING, "INTERNAL", "UNKNOWN"])
    assert sorted(code.name for code in StatusCode if is_transient(from_grpc_status(code, "no entry"))) == PASSING


@pytest.mark.parametrize(
    "message", ["Received RST_STREAM with error code 2", "Received unexpected EOS on DATA frame from server"]
)
def test_a_stream_reset_is_transient(message: str) -> None:
    """An INTERNAL error that reports a broken connection."""
    assert is_transient(from_grpc_status(StatusCode.INTERNAL, message))


def test_a_message_too_large_is_not_transient() -> None:
    """It has the code of an exhausted quota, and another attempt would be as large."""
    error = from_grpc_status(StatusCode.RESOURCE_EXHAUSTED, "Sent message larger than max (9 vs. 4)")
    assert is_too_large(error)
    assert not is_transient(error)
    assert not is_too_large(from_grpc_status(StatusCode.RESOURCE_EXHAUSTED, "quota of reads is used up"))
    assert not is_too_large(from_grpc_status(StatusCode.INTERNAL, "message larger than max"))


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (None, "which does not exist"),
        (b"{", "which is not a file of credentials in JSON"),
        (b"\xff\xfe", "which is not a file of credentials in JSON"),
        (b"[]", "which is not a file of credentials in JSON"),
        (b"[" * 100_000, "which is not a file of credentials in JSON"),
        (b'{"type": "key"}', "which is not valid: The file .* does not have a valid type. Type is key, .*"),
        (b'{"type": "service_account"}', "which is not valid: Service account info was not .* missing fields .*"),
    ],
)
def test_a_bad_file_of_credentials(content, fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the variable, the file and its fault, and says what to do."""
    file = tmp_path / "key.json"
    if content is not None:
        file.write_bytes(content)
    assert re.fullmatch(
        f"Pub/Sub: GOOGLE_APPLICATION_CREDENTIALS is {file}, {fault}; "
        "correct it, or unset it and run 'gcloud auth application-default login'",
        signing_in(file, monkeypatch),
    )


def test_a_folder_as_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that can't be read is named too."""
    assert f"CREDENTIALS is {tmp_path}, which can't be read: Is a directory; " in signing_in(tmp_path, monkeypatch)


def test_bad_credentials_of_gcloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken file of gcloud's own is named by Google's message."""
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    file = tmp_path / "application_default_credentials.json"
    file.write_text("{")
    assert f"the Google credentials are not valid: File {file} is not a valid json file.; run" in signing_in(
        None, monkeypatch
    )


def test_other_errors_of_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that has nothing to do with the file is not blamed on it."""
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nonexistent.json")
    with pytest.raises(PermissionError), explained("Pub/Sub"):
        raise PermissionError(13, "Permission denied", "/other")


def signing_in(file: Path | None, monkeypatch: pytest.MonkeyPatch) -> str:
    if file is None:
        monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    else:
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    with pytest.raises(ServerError) as caught, explained("Pub/Sub"):
        google.auth.default()
    return str(caught.value)
