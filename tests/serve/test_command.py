"""``tidetable serve`` refuses to start, in one line."""

import socket
import time
from contextlib import ExitStack

import pytest
from click.testing import CliRunner

from pipeline.cli.root import main
from pipeline.local.emulators import BIGTABLE
from pipeline.private_apis.http_connections import MOST_CONNECTIONS
from tests.serve.serving import get, serving, table_of, token_file


def refused(*arguments, table="sensors"):
    options = ["--project=test-project", "--instance=test-instance", f"--table={table}"]
    result = CliRunner().invoke(main, ["serve", *options, *arguments])
    assert result.exit_code in (1, 2)
    return result.exit_code, result.stderr.splitlines()[-1]


@pytest.mark.parametrize("host", ["10.0.0.1", "::", "sensors.example"])
def test_beyond_this_machine_without_protection(host):
    """An address that others can reach needs a token or a proxy."""
    code, line = refused(f"--host={host}")
    assert (code, "pass --token-file, or --behind-proxy" in line) == (2, True)


def test_a_token_file_without_a_token(tmp_path):
    """A file that holds no token is refused in one line."""
    path, _ = token_file(tmp_path)
    path.write_text("short")
    assert refused(f"--token-file={path}") == (
        2,
        f"Error: Invalid value for --token-file: {path} does not contain one token of 16 to 1000 characters; "
        "make one with: openssl rand -hex 32",
    )


def test_a_table_that_does_not_exist(bigtable):
    """A missing table is refused at once."""
    code, line = refused()
    assert (code, "does not exist" in line) == (1, True)


def test_bigtable_out_of_reach(monkeypatch):
    """An emulator that does not answer is named with its variable at once, before the page is up."""
    with socket.create_server(("127.0.0.1", 0)) as unused:
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    monkeypatch.setenv(BIGTABLE.variable, address)
    started = time.monotonic()
    code, line = refused()
    told = line.startswith(f"Error: {BIGTABLE.variable} is {address}, but nothing answers there: start the emulator")
    assert (code, told) == (1, True)
    assert time.monotonic() - started < 5  # a reader of the server waits twice as long for one that is away


def test_a_port_in_use(bigtable):
    """A port in use is refused in one line."""
    name = table_of([])
    with serving(name) as address:
        port = address.rpartition(":")[2]
        code, line = refused(f"--port={port}", table=name.table)
    assert (code, line) == (1, f"Error: can't listen on 127.0.0.1, port {port}: Address already in use")


def test_connections_that_never_finish_a_request(bigtable):
    """However many there are, whoever sends a whole request is answered."""
    with serving(table_of([])) as address, ExitStack() as open_ones:
        host, port = address.removeprefix("http://").split(":")
        for _ in range(MOST_CONNECTIONS + 20):
            connection = open_ones.enter_context(socket.create_connection((host, int(port)), 10))
            connection.sendall(b"GET /api/v1/schema HTTP/1.1\r\n")
        assert get(f"{address}/api/v1/schema").status == 200
