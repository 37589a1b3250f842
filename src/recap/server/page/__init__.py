"""The page of the service: its files, and pictures to try it with, in memory from the start.

    index.html    what is there before anything is dropped
    page.css      how it looks, in the colours of ``recap.batch.report``
    page.js       begins; the other scripts are one for each part of the page

What a request asks for is a key of a dictionary, never a path.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import Response

from recap.server.problems import Problem

TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".jpg": "image/jpeg",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
}
HERE = Path(__file__).parent
SAMPLES = (HERE / "samples", HERE.parents[3] / "examples" / "pictures")
"""Where pictures to try are: in an installed package, and in a checkout."""


class Assets:
    """Files by name, each with its type and a tag that changes with its content."""

    def __init__(self) -> None:
        self._files = {path.name: path.read_bytes() for path in HERE.iterdir() if path.suffix in TYPES}
        samples = _samples()
        self._files.update((f"samples/{name}", content) for name, content in samples.items())
        self._files["samples.json"] = json.dumps(sorted(samples)).encode()
        self._tags = {name: f'"{hashlib.sha256(content).hexdigest()[:20]}"' for name, content in self._files.items()}

    def response(self, name: str, known: str) -> Response:
        """Return a file, or that the browser has it already; ``known`` are the tags it gave.

        Browsers keep files and ask each time, so that after an update they have all of the new page or none of it.
        """
        if name not in self._files:
            raise Problem(404, "Not Found")
        headers = {"Cache-Control": "no-cache", "ETag": self._tags[name]}
        if self._tags[name] in known:
            return Response(status_code=304, headers=headers)
        return Response(self._files[name], headers=headers, media_type=TYPES[Path(name).suffix])


def page_router() -> APIRouter:
    """Return the routes of the page."""
    router = APIRouter(include_in_schema=False)
    assets = Assets()

    @router.get("/")
    async def index(request: Request) -> Response:
        return assets.response("index.html", request.headers.get("if-none-match", ""))

    @router.get("/static/{name:path}")
    async def static(request: Request, name: str) -> Response:
        return assets.response(name, request.headers.get("if-none-match", ""))

    return router


def _samples() -> dict[str, bytes]:
    folder = next((place for place in SAMPLES if place.is_dir()), None)
    return {path.name: path.read_bytes() for path in folder.glob("*.jpg")} if folder else {}
