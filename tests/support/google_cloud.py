"""Stand-ins for Google Cloud: a storage emulator, and a Dataflow that records requests."""

import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
from gcp_storage_emulator.server import create_server
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

BUCKET = "tidetable-test"
PENDING, RUNNING, CANCELLED = 9, 2, 5  # of dataflow.JobState, as far as tests need them


ON_DATAFLOW = (
    "--runner=DataflowRunner",
    "--region=europe-west4",
    f"--temp_location=gs://{BUCKET}/temp",
    "--sdk_container_image=example/tidetable:1",
)


class Storage:
    """The bucket of a storage emulator."""

    def __init__(self, url: str) -> None:
        self.url = url
        client = storage.Client("test-project", AnonymousCredentials(), client_options={"api_endpoint": url})
        self._bucket = client.bucket(BUCKET)

    def names(self) -> list[str]:
        return sorted(blob.name for blob in self._bucket.list_blobs())

    def read(self, name: str) -> bytes:
        return self._bucket.blob(name).download_as_bytes()

    def write(self, name: str, content: bytes) -> None:
        self._bucket.blob(name).upload_from_string(content)

    def clear(self) -> None:
        for blob in self._bucket.list_blobs():
            blob.delete()


@contextmanager
def running_storage() -> Iterator[Storage]:
    """Runs a storage emulator on a free loopback port, in memory, with one bucket."""
    server = create_server("127.0.0.1", 0, in_memory=True, default_bucket=BUCKET)
    server.start()
    try:
        yield Storage(f"http://127.0.0.1:{server._api._httpd.server_address[1]}")
    finally:
        server.stop()


class Dataflow:
    """The jobs of a project, as its REST API returns them. It can refuse jobs and delay answers."""

    def __init__(self) -> None:
        self.jobs: list[dict] = []
        self.refusal: tuple[int, str] | None = None
        self.accepts_jobs = True  # otherwise it only notes that it was asked
        self.may_list = True  # whether jobs may be listed and read
        self.name_taken = False  # if True, it answers with the job that has the name
        self.answer = threading.Event()  # cleared, the creation of a job is not confirmed
        self.answer.set()
        self.asked = threading.Event()

    def create(self, job: dict) -> dict:
        if self.name_taken:
            return self.jobs[-1]
        if self.accepts_jobs:
            self.jobs.append(job | {"id": f"job-{len(self.jobs)}", "currentState": PENDING, "location": "europe-west4"})
        self.asked.set()
        self.answer.wait(60)
        return self.jobs[-1]

    def find(self, job_id: str) -> dict:
        return next(job for job in self.jobs if job["id"] == job_id)


@contextmanager
def running_dataflow() -> Iterator[tuple[Dataflow, str]]:
    """Runs the service on a free loopback port, and yields it with its endpoint."""
    dataflow = Dataflow()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if dataflow.refusal:
                self._send(
                    dataflow.refusal[0], {"error": {"code": dataflow.refusal[0], "message": dataflow.refusal[1]}}
                )
            else:
                self._send(200, dataflow.create(body))

        def do_GET(self) -> None:
            if not dataflow.may_list:
                self._send(
                    403, {"error": {"code": 403, "message": "dataflow.jobs.list", "status": "PERMISSION_DENIED"}}
                )
                return
            path = urlsplit(self.path).path
            job_id = path.partition("/jobs/")[2]
            self._send(200, dataflow.find(job_id) if job_id else {"jobs": dataflow.jobs})

        def do_PUT(self) -> None:
            job = dataflow.find(urlsplit(self.path).path.partition("/jobs/")[2])
            change = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            job["currentState"] = change["requestedState"]
            self._send(200, job)

        def _send(self, status: int, answer: dict) -> None:
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Logs nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield dataflow, f"http://localhost:{server.server_address[1]}"
    finally:
        dataflow.answer.set()
        server.shutdown()
        server.server_close()


@contextmanager
def submitting_to_dataflow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Dataflow]:
    """Runs both, and gives the stand-in of Dataflow the ``flags`` and ``options`` of a batch job submitted there."""
    from apache_beam.internal.gcp import auth  # Beam, which users of the storage alone do without

    from pipeline.job.bounded import beam_options

    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setattr(auth._Credentials, "_credentials_init", True)  # none: looking for them takes 20 seconds
    keep_installed_packages(monkeypatch)
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with running_storage() as storage, running_dataflow() as (dataflow, endpoint):
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage.url)
        flags = [*ON_DATAFLOW, "--no_auth", "--sdk_location=container", f"--dataflow_endpoint={endpoint}"]
        dataflow.flags, dataflow.options = flags, beam_options(flags, "test-project")
        yield dataflow
    for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
        signal.signal(number, handler)


def keep_installed_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Submits a short list of installed packages, instead of the one for which pip runs half a second."""
    from apache_beam.runners.portability import stager

    listed = SimpleNamespace(check_output=lambda _: b"tidetable-bigtable==0")
    monkeypatch.setattr(stager, "subprocess", listed)
