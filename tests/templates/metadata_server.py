"""A metadata server like that of a Google machine, which provides a launcher's credentials."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ACCOUNT = "tidetable@test-project.iam.gserviceaccount.com"
_ACCOUNT_PATH = "/computeMetadata/v1/instance/service-accounts/"
_TOKEN = {"access_token": "token", "expires_in": 3600, "token_type": "Bearer"}
_ABOUT = {"email": ACCOUNT, "aliases": ["default"], "scopes": ["https://www.googleapis.com/auth/cloud-platform"]}
_ANSWERS = {
    "/": "",
    "/computeMetadata/v1/project/project-id": "test-project",
    "/computeMetadata/v1/universe/universe-domain": "googleapis.com",
    f"{_ACCOUNT_PATH}default/": json.dumps(_ABOUT),
    f"{_ACCOUNT_PATH}{ACCOUNT}/": json.dumps(_ABOUT),
    f"{_ACCOUNT_PATH}default/token": json.dumps(_TOKEN),
    f"{_ACCOUNT_PATH}{ACCOUNT}/token": json.dumps(_TOKEN),
}


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        answer = _ANSWERS.get(self.path.partition("?")[0])
        self.send_response(404 if answer is None else 200)
        self.send_header("Metadata-Flavor", "Google")
        self.send_header("Content-Type", "application/json" if answer and answer.startswith("{") else "text/plain")
        self.end_headers()
        self.wfile.write((answer or "").encode())

    def log_message(self, *_: object) -> None:
        """Logs nothing."""


@contextmanager
def running_metadata_server() -> Iterator[str]:
    """Runs a metadata server, and yields host and port for ``GCE_METADATA_HOST`` and ``GCE_METADATA_IP``."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
