"""``tidetable serve``: starts the server."""

import gc
import os
import socket
from pathlib import Path

import click
import uvicorn

from pipeline.cli.options import FloatRange, InputPath, schema_options, table_options
from pipeline.cloud.connection.names import TableName
from pipeline.core.notation.web import is_loopback, read_token
from pipeline.core.schema.changes import DeclaredSchema
from pipeline.private_apis.http_connections import MOST_CONNECTIONS, BoundedConnection
from pipeline.serve.app import create_app
from pipeline.serve.reads import Reads

_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="The port; 0 for any.")
@click.option(
    "--token-file",
    type=InputPath(),
    help="A file with a token that requests to the API have to present. Needed beyond this machine.",
)
@click.option(
    "--behind-proxy",
    is_flag=True,
    help="Listen beyond this machine without a token: a proxy in front of the server authenticates.",
)
@click.option(
    "--timeout",
    type=FloatRange(1, 300),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="The longest time that an answer may take.",
)
@table_options
@schema_options
def serve(
    host: str,
    port: int,
    token_file: Path | None,
    behind_proxy: bool,
    timeout: float,
    table: TableName,
    declared: DeclaredSchema,
) -> None:
    """Serve a table over HTTP: a page for the browser, and an API.

    The server only reads. It listens on this machine alone; beyond it, it needs --token-file, or --behind-proxy for a
    proxy that authenticates. The page is at /, the API at /api/v1, its documentation at /api/docs.
    """
    if not is_loopback(host) and token_file is None and not behind_proxy:
        raise click.UsageError(
            f"{host} is reached from other machines: pass --token-file, or --behind-proxy if a proxy authenticates"
        )
    try:
        token = read_token(token_file) if token_file else None
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--token-file") from error
    reads = Reads.open(table, declared, timeout)
    listening = _listen(host, port)
    app = create_app(reads, token, None if behind_proxy or not is_loopback(host) else (*_LOOPBACK_NAMES, host))
    config = uvicorn.Config(
        app,
        log_level="error",  # warnings are about requests: whoever is refused must not fill a disk
        http=BoundedConnection,
        ws="none",
        server_header=False,
        limit_concurrency=MOST_CONNECTIONS + 1,
        timeout_graceful_shutdown=3,
        proxy_headers=False,
    )
    # A short command is faster with few collections. A server has to free what its requests leave.
    gc.freeze()
    gc.set_threshold(700, 10, 10)
    address = f"[{host}]" if ":" in host else host
    click.echo(f"Serving {table} at http://{address}:{listening.getsockname()[1]}/ until Ctrl-C", err=True)
    uvicorn.Server(config).run([listening])


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=MOST_CONNECTIONS)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise click.ClickException(f"can't listen on {host}, port {port}: {reason}") from error
    listening.set_inheritable(False)
    return listening
