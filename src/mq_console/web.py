"""The console as an ASGI application: addresses, pages, and the same as JSON."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from mq_client import TritonMQError
from mq_console.actions import ACTIONS, Action
from mq_console.rendering import as_json, environment
from mq_console.views import NotThere, View, Views
from mq_console.watching import Seen

STATIC: Final = Path(__file__).parent / "static"
FORM_BYTES_MAX: Final = 65_536

PAGES: Final[Mapping[str, str]] = {
    "/": "overview",
    "/brokers/{name}": "broker",
    "/topics": "topics",
    "/topics/{name}": "topic",
    "/topics/{name}/tail": "tail",
    "/groups": "groups",
    "/groups/{name}": "group",
    "/queues": "queues",
    "/sinks": "sinks",
    "/moves": "moves",
}
"""Each page, and the method of `Views` that makes it. `/api/v1` before it: the same as JSON."""

_STATUS: Final = {"NOT_FOUND": 404, "PERMISSION_DENIED": 403, "UNAUTHENTICATED": 403, "INVALID_ARGUMENT": 400}
_TITLES: Final = {400: "Not understood", 403: "Not allowed", 404: "Not here", 503: "Not answered"}


class Site:
    """Owns the templates, and the secret that forms carry."""

    def __init__(self, views: Views) -> None:
        self._views = views
        self._environment = environment()
        self._secret = secrets.token_bytes(32)
        version = hashlib.sha256()
        for path in sorted(STATIC.rglob("*.*")):
            version.update(path.read_bytes())
        self._version = version.hexdigest()[:12]

    def app(self) -> Starlette:
        """To be served below any path."""
        routes: list[Route | Mount] = []
        for path, method in PAGES.items():
            routes.append(Route(path, partial(self._page, method), methods=["GET"]))
            api = f"/api/v1{'/overview' if path == '/' else path}"
            routes.append(Route(api, partial(self._json, method), methods=["GET"]))
        if self._views.settings.actions:
            routes.append(Route("/actions/{action}", self._form, methods=["GET"]))
            routes.append(Route("/actions/{action}", self._act, methods=["POST"]))
        routes.append(Mount("/static", _Static(directory=STATIC)))
        return Starlette(routes=routes, exception_handlers={HTTPException: self._wrong, Exception: self._failed})

    # ------------------------------------------------------------------ answers

    async def _page(self, method: str, request: Request) -> Response:
        return await run_in_threadpool(self._rendered, method, request)

    def _rendered(self, method: str, request: Request) -> Response:
        seen, view, status = self._looked(method, request)
        return self._html(request, seen, view, status)

    async def _json(self, method: str, request: Request) -> Response:
        return await run_in_threadpool(self._as_json, method, request)

    def _as_json(self, method: str, request: Request) -> Response:
        seen, view, status = self._looked(method, request)
        data = {**view.data, "at_us": seen.at_us, "fault": seen.fault}
        return Response(as_json(data), status, media_type="application/json")

    def _looked(self, method: str, request: Request) -> tuple[Seen, View, int]:
        seen = self._views.watcher.seen()
        show: Callable[..., View] = getattr(self._views, method)
        names = [request.path_params["name"]] if "name" in request.path_params else []
        try:
            return seen, show(seen, dict(request.query_params), *names), 200
        except TritonMQError as error:
            return seen, *_refused(error)

    def _html(self, request: Request, seen: Seen, view: View, status: int) -> Response:
        observed = None if seen.look is None else seen.look.observed
        text = self._environment.get_template(view.template).render(
            **view.data,
            **view.more,
            title=view.title,
            seen=seen,
            cluster=observed.cluster_id if observed else "",
            base=request.scope.get("root_path", ""),
            place=request.url.path.removeprefix(request.scope.get("root_path", "")),
            static=self._version,
            console=self._views.settings,
            series=self._views.watcher.history,
            actions=ACTIONS,
            now_us=seen.at_us,
        )
        return Response(text, status, media_type="text/html")

    # ------------------------------------------------------------------ actions

    def _token(self) -> str:
        return hmac.new(self._secret, b"form", hashlib.sha256).hexdigest()

    def _action(self, request: Request) -> Action:
        found = ACTIONS.get(request.path_params["action"])
        if found is None:
            raise HTTPException(404)
        return found

    async def _form(self, request: Request) -> Response:
        action = self._action(request)
        given = {each.name: request.query_params.get(each.name, each.default)[:1_000] for each in action.fields}
        return self._asked(request, action, given, "", 200)

    async def _act(self, request: Request) -> Response:
        action = self._action(request)
        form = await _posted(request)
        if not hmac.compare_digest(form.get("token", "").encode("utf-8", "replace"), self._token().encode()):
            return self._asked(request, action, form, "this form is of a console that has ended: send it again", 403)
        given = {each.name: form.get(each.name, "").strip()[:1_000] for each in action.fields}
        if action.names is not None and form.get("confirm", "") != given[action.names]:
            return self._asked(request, action, given, f"type {given[action.names]} to confirm", 400)
        try:
            done = await run_in_threadpool(action.do, self._views.admin, given)
        except TritonMQError as error:
            return self._asked(request, action, given, str(error), _refused(error)[1])
        self._views.asked.forget()
        more = {"done": done, "command": action.command(given)}
        return self._html(request, self._views.watcher.seen(0), View("done.html", action.title, {}, more), 200)

    def _asked(self, request: Request, action: Action, given: Mapping[str, str], fault: str, status: int) -> Response:
        more = {"action": action, "given": given, "fault": fault, "token": self._token()}
        return self._html(request, self._views.watcher.seen(0), View("action.html", action.title, {}, more), status)

    # ------------------------------------------------------------------ what goes wrong

    async def _wrong(self, request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        text = {404: "there is no such page", 405: "this page only shows"}.get(status, "this cannot be answered")
        return self._html(request, self._views.watcher.seen(0), _fault("Not here", text), status)

    async def _failed(self, request: Request, _error: Exception) -> Response:
        return self._html(
            request, self._views.watcher.seen(0), _fault("Failed", "a fault of the console: its log has it"), 500
        )


def _fault(title: str, text: str) -> View:
    return View("error.html", title, {"error": text}, {})


def _refused(error: TritonMQError) -> tuple[View, int]:
    """What the cluster said, or why it could not be asked."""
    status = 404 if isinstance(error, NotThere) else _STATUS.get(error.grpc_status, 503)
    return _fault(_TITLES[status], str(error)), status


async def _posted(request: Request) -> dict[str, str]:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > FORM_BYTES_MAX:
            raise HTTPException(413)
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=50))
    except ValueError:
        raise HTTPException(400) from None


class _Static(StaticFiles):
    """Files that a browser keeps: their addresses have the version."""

    async def get_response(self, path: str, scope: Any) -> Response:
        found = await super().get_response(path, scope)
        found.headers["cache-control"] = "max-age=86400"
        return found
