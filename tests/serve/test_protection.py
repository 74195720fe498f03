"""Who may ask, and what a browser may do with the answers."""

import pytest

from tests.serve.serving import get, serving, table_of, token_file


@pytest.fixture(scope="module")
def table(bigtable):
    return table_of([])


def test_on_this_machine(table):
    """Without protection this machine alone is answered, with a strict content policy."""
    with serving(table) as address:
        for path in ("/", "/static/main.js", "/api/v1/latest", "/api/v1/nothing", "/api/docs"):
            answer = get(address + path)
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "frame-ancestors 'none'" in policy
            assert ("unsafe-inline" in policy) == (path == "/api/docs")
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["referrer-policy"] == "no-referrer"
            assert "server" not in answer.headers
        assert get(f"{address}/api/v1/latest").headers["cache-control"] == "no-store"
        for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", ""):
            assert get(f"{address}/api/v1/latest", host=host).status == 421
        for host in ("localhost", "LOCALHOST:1", "127.0.0.1:5", "[::1]:80"):
            assert get(f"{address}/api/v1/latest", host=host).status == 200
        for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"):
            assert get(f"{address}/api/v1/latest", method).status == 405
        for path in ("/", "/static/main.js", "/api/v1/latest", "/api/docs"):
            answer = get(address + path, "HEAD")
            assert (answer.status, answer.body) == (200, b"")
        for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py"):
            assert get(address + path).status == 404


def test_a_token(table, tmp_path):
    """Only requests with the token are answered; the page itself needs none."""
    path, token = token_file(tmp_path)
    with serving(table, f"--token-file={path}") as address:
        assert get(address).status == get(f"{address}/static/main.js").status == 200  # the page asks for the token
        for refused in ({}, {"authorization": token}, {"authorization": f"Bearer {token}0"}, {"authorization": "é"}):
            answer = get(f"{address}/api/v1/latest", **refused)
            assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert get(f"{address}/api/v1/latest", authorization=f"Bearer {token}").status == 200


def test_behind_a_proxy(table):
    """Behind a proxy any host name is answered."""
    with serving(table, "--behind-proxy") as address:
        assert get(f"{address}/api/v1/latest", host="sensors.example").status == 200
