"""The ASGI application: the API, its documentation, the page for the browser, and what protects them."""

import hmac
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from fastapi_offline import FastAPIOffline
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pipeline import __version__
from pipeline.cloud.connection.problems import ServerError
from pipeline.serve import alerts, api, rollups
from pipeline.serve.parameters import parameters_of
from pipeline.serve.reads import Busy, ClientLeft, Reads, TookTooLong

_STATIC = Path(__file__).parent / "static"
_DOCS = "/api/docs"
_CLOSED = 499  # the code that servers log for a client that left

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


def create_app(reads: Reads, token: str | None = None, hosts: Collection[str] | None = None) -> FastAPI:
    """Returns the application. It closes ``reads`` when it shuts down.

    Args:
        reads: the connection to the table.
        token: the token that requests to the API have to present; None for no token.
        hosts: the host names under which the server answers; None for any.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        reads.close()

    app = FastAPIOffline(
        docs_url=None,
        redoc_url=None,
        openapi_url=f"{_DOCS}/openapi.json",
        static_url=f"{_DOCS}/static",
        title="Tidetable",
        version=__version__,
        description="Reads one table. Times are in UTC unless they have an offset.",
        lifespan=lifespan,
        license_info={"name": "Apache-2.0"},
    )
    app.state.reads = reads
    app.include_router(api.router)
    app.include_router(alerts.router)
    app.include_router(rollups.router)
    app.add_middleware(Protection, token=token, hosts=hosts)
    for kind, answer in _ANSWERS.items():
        app.add_exception_handler(kind, answer)

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(_STATIC / "index.html", headers={"Cache-Control": "no-cache"})

    @app.get(_DOCS, include_in_schema=False)
    async def documentation() -> HTMLResponse:
        static = f"{_DOCS}/static"
        swagger = get_swagger_ui_html(
            openapi_url=f"{_DOCS}/openapi.json",
            title="Tidetable API",
            swagger_js_url=f"{static}/swagger-ui-bundle.js",
            swagger_css_url=f"{static}/swagger-ui.css",
            swagger_favicon_url="/static/icon.svg",
        )
        dark = '<script src="/static/dark.js"></script></head>'
        return HTMLResponse(bytes(swagger.body).decode().replace("</head>", dark))

    app.mount("/static", StaticFiles(directory=_STATIC))
    return app


def _problem(status: int, text: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": text}, status, headers)


def _invalid(error: RequestValidationError) -> Response:
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"][1:])
    return _problem(400, f"{name}: {first['msg']}")


def _too_slow(request: Request) -> Response:
    seconds, less = request.app.state.reads.timeout_s, "fewer sensors, such as those of a prefix"
    if "start" in parameters_of(request):
        less = "a shorter range, or fewer sensors"
    return _problem(504, f"Bigtable took longer than {seconds:g} s; ask for {less}")


_LATER = {"Retry-After": "5"}
_ANSWERS: dict[type[Exception], Callable[[Request, Any], Response]] = {
    HTTPException: lambda _, error: _problem(error.status_code, error.detail),
    RequestValidationError: lambda _, error: _invalid(error),
    ValueError: lambda _, error: _problem(400, str(error)),
    ServerError: lambda _, error: _problem(503, str(error), _LATER),
    TookTooLong: lambda request, _: _too_slow(request),
    Busy: lambda *_: _problem(503, "too many requests wait before this one; ask again later", _LATER),
    ClientLeft: lambda *_: Response(status_code=_CLOSED),
}
"""The answer to each exception."""


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
                answer["Content-Security-Policy"] = _INLINE if path.startswith(_DOCS) else _STRICT
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
        if self._token is not None and path.startswith(_API) and not path.startswith(_DOCS):
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
