"""The ASGI application: the API, its documentation, and the page for the browser."""

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException

from pipeline import __version__
from pipeline.cloud.connection.problems import ServerProblem
from pipeline.serve import alerts, api, rollups
from pipeline.serve.protection import Protection
from pipeline.serve.reads import Busy, ClientLeft, Reads, TookTooLong

_STATIC = Path(__file__).parent / "static"
_DOCS = "/api/docs"
_CLOSED = 499  # the code that servers log for a client that left


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
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(ValueError, _unanswerable)
    app.add_exception_handler(ServerProblem, _unavailable)
    app.add_exception_handler(TookTooLong, _too_slow)
    app.add_exception_handler(Busy, _busy)
    app.add_exception_handler(ClientLeft, _left)

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


def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 (what this handler is registered for)
    return _problem(error.status_code, error.detail)


def _invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 (what this handler is registered for)
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"][1:])
    return _problem(400, f"{name}: {first['msg']}")


def _unanswerable(_: Request, error: Exception) -> Response:
    return _problem(400, str(error))


def _unavailable(_: Request, error: Exception) -> Response:
    return _problem(503, str(error), {"Retry-After": "5"})


def _too_slow(request: Request, _: Exception) -> Response:
    seconds = request.app.state.reads.timeout_s
    return _problem(504, f"Bigtable took longer than {seconds:g} s; ask for a shorter range, or fewer sensors")


def _busy(_: Request, __: Exception) -> Response:
    return _problem(503, "too many requests wait before this one; ask again later", {"Retry-After": "5"})


def _left(_: Request, __: Exception) -> Response:
    return Response(status_code=_CLOSED)


def _problem(status: int, text: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": text}, status, headers)
