"""Protects the server: checks tokens and host names, and limits what a browser does with the answers."""

import hmac
import ipaddress
from collections.abc import Collection
from pathlib import Path

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_LEAST_TOKEN_LENGTH = 16
_MOST_TOKEN_BYTES = 1000

# Scripts, styles and requests of the server itself only. The API's page has a script and styles in its HTML.
_POLICY = (
    "default-src 'none'; {}; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_STRICT = _POLICY.format("script-src 'self'; style-src 'self'")
_INLINE = _POLICY.format("script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'")
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
_API = "/api/"
_API_PAGE = "/api/docs"


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine reach a server on this host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_token(path: Path) -> str:
    """Returns the token in a file. Raises ValueError if it is missing, or too short to be a secret."""
    try:
        with path.open("rb") as file:
            token = file.read(_MOST_TOKEN_BYTES + 1).decode("ascii").strip()
    except OSError as error:
        raise ValueError(f"{path} can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} contains characters beyond ASCII; make a token with: openssl rand -hex 32") from error
    if not token.isprintable() or " " in token or not _LEAST_TOKEN_LENGTH <= len(token) <= _MOST_TOKEN_BYTES:
        raise ValueError(
            f"{path} does not contain one token of {_LEAST_TOKEN_LENGTH} to {_MOST_TOKEN_BYTES} characters; "
            "make one with: openssl rand -hex 32"
        )
    return token


class Protection:
    """ASGI middleware.

    Args:
        app: the application.
        token: the token that requests to the API present, as ``Authorization: Bearer …``; None for no token.
        hosts: the names that the Host header may have, without a port; None for any. On loopback, they keep a web site
            whose name resolves to this machine from reading the table through a visitor's browser.
    """

    def __init__(self, app: ASGIApp, token: str | None, hosts: Collection[str] | None) -> None:
        self._app = app
        self._token = token
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path, headers = scope["path"], Headers(scope=scope)

        async def protected(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer = MutableHeaders(scope=message)
                answer.update(_HEADERS)
                answer["Content-Security-Policy"] = _INLINE if path.startswith(_API_PAGE) else _STRICT
                if path.startswith(_API):
                    answer["Cache-Control"] = "no-store"
            await send(message)

        refusal = self._refusal(scope["method"], path, headers)
        if scope["method"] == "HEAD":  # routes know GET only; the server sends no body for HEAD
            scope = {**scope, "method": "GET"}
        await (refusal or self._app)(scope, receive, protected)

    def _refusal(self, method: str, path: str, headers: Headers) -> JSONResponse | None:
        if self._hosts is not None and _host_name(headers.get("host", "")) not in self._hosts:
            return JSONResponse({"error": "this server does not answer under this name of the host"}, 421)
        if method not in ("GET", "HEAD"):
            return JSONResponse({"error": "this server only reads: use GET"}, 405, {"Allow": "GET, HEAD"})
        if self._token is not None and path.startswith(_API) and not path.startswith(_API_PAGE):
            presented = headers.get("authorization", "").encode()
            if not hmac.compare_digest(presented, f"Bearer {self._token}".encode()):
                wrong = "the token is not that of this server; " if presented else ""
                return JSONResponse(
                    {"error": f"{wrong}send the token of this server as Authorization: Bearer TOKEN"},
                    401,
                    {"WWW-Authenticate": "Bearer"},
                )
        return None


def _host_name(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0].removeprefix("[")
    return host.partition(":")[0].lower()
