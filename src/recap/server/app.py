"""The application, put together, and the process that serves it: its socket, its signals and its end."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, closing
from functools import partial
from types import FrameType

import uvicorn
from fastapi import FastAPI, Security
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from recap import __version__
from recap.assets import vector_file
from recap.captioner import ReCap
from recap.datastore.index import build_index
from recap.encoders.apart import ApartDecoder
from recap.encoders.fetching import Fetcher
from recap.encoders.network import cores
from recap.errors import InputError
from recap.server.batching import Batcher
from recap.server.config import DECODER_MEMORY, FETCH_SECONDS, MAX_DECODERS, PIXEL_MEMORY, ServerConfig
from recap.server.middleware import (
    BEARER,
    KEY_HEADER,
    BodyLimits,
    Guard,
    HeadRequests,
    Metrics,
    Observer,
    SecurityHeaders,
    TrustedHosts,
)
from recap.server.problems import HANDLERS
from recap.server.routes import captions_router, health_router, metrics_router, packs_router, page_router, search_router
from recap.server.routes_chat import chat_router
from recap.server.routes_datastore import datastore_router
from recap.server.service import Engine, Service

logger = logging.getLogger("recap.server")

DESCRIPTION = """Captions for pictures, with their evidence, and scores for captions. Errors are problem+json.

```sh
curl -F image=@cat.jpg localhost:8000/v1/caption
curl -H 'Content-Type: image/jpeg' --data-binary @cat.jpg 'localhost:8000/v1/caption?k=5'
curl -N -F image=@cat.jpg -F image=@dog.jpg localhost:8000/v1/caption/stream
curl -F image=@cat.jpg localhost:8000/v1/tags
curl -F image=@cat.jpg -F caption='a cat on a sofa' localhost:8000/v1/score
curl --json '{"text": "two dogs in the snow"}' localhost:8000/v1/search
curl --json '{"messages": [{"role": "user", "content": "What can you do?"}]}' localhost:8000/v1/chat/completions
```

Where the service has keys, add `-H 'Authorization: Bearer KEY'`; here, use the button *Authorize*.
"""


def create_app(captioner: ReCap, config: ServerConfig | None = None) -> FastAPI:
    """Return the application that serves a captioner.

    Its worker starts with the application and, when that ends, finishes what was accepted.
    """
    chosen = config or ServerConfig()
    metrics = Metrics(chosen.pack)
    decoder = _decoder(chosen) if chosen.decode_apart else None
    batcher = Batcher(
        partial(decoder.encode_each, captioner) if decoder else captioner.encode_each,
        metrics,
        max_queue=chosen.max_queue,
        max_batch=chosen.max_batch,
        max_pixels=chosen.max_pixels,
        on_death=lambda: app.state.on_death(),
    )
    fetcher = Fetcher(max_bytes=chosen.max_body, timeout=FETCH_SECONDS) if chosen.allow_urls else None

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with ExitStack() as stack:
            for part in (fetcher, decoder, batcher):
                if part is not None:
                    stack.enter_context(closing(part))
            if decoder is not None:
                decoder.start()
            batcher.start()
            yield

    app = FastAPI(
        title="recap",
        version=__version__,
        description=DESCRIPTION,
        # the usual pages of documentation load scripts from elsewhere
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
        exception_handlers=HANDLERS,
        middleware=[
            Middleware(Observer, metrics=metrics),
            Middleware(SecurityHeaders),
            Middleware(TrustedHosts, hosts=chosen.hosts),
            *_cors(chosen.cors),
            Middleware(Guard, keys=chosen.api_keys, origins=chosen.cors),
            Middleware(BodyLimits, config=chosen, metrics=metrics),
            Middleware(HeadRequests),
        ],
    )
    app.state.stopping = False
    app.state.on_death = lambda: None
    index = None
    if chosen.search is not None:
        index = captioner.index(chosen.search, cache=vector_file(), progress=True)
        for problem in index.problems:
            logger.warning("not searched: %s", problem)
    app.state.service = Service(chosen, Engine(captioner, index), batcher, metrics, fetcher)
    # checked by the guard, before a body is read; declared here, so that clients know
    keys = [Security(BEARER), Security(KEY_HEADER)] if chosen.api_keys else []
    for router in (captions_router, chat_router, search_router, datastore_router, packs_router, metrics_router):
        app.include_router(router, dependencies=keys)
    for router in (health_router, page_router):
        app.include_router(router)
    return app


def _cors(origins: tuple[str, ...]) -> list[Middleware]:
    """Return what tells browsers whose pages may use the service; without it they assume none."""
    if not origins:
        return []
    return [
        Middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["GET", "HEAD", "POST", "DELETE"],
            allow_headers=["Authorization", "Content-Type", "X-API-Key"],
            expose_headers=["Retry-After"],
        )
    ]


def _decoder(config: ServerConfig) -> ApartDecoder:
    return ApartDecoder(
        processes=min(cores(), MAX_DECODERS),
        # a JPEG may have twice as many, see ``forms.decoding_cost``
        max_pixels=2 * config.max_pixels,
        memory=DECODER_MEMORY + PIXEL_MEMORY * config.max_pixels,
        seconds=config.timeout,
    )


def bind(host: str, port: int) -> socket.socket:
    """Return a socket with its address."""
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host.strip("[]"), port))
    except OSError as error:
        listening.close()
        raise InputError(f"cannot listen on {host} port {port}: {error.strerror or error}") from error
    return listening


def run(captioner: ReCap, config: ServerConfig, listening: socket.socket, *, tell: Callable[[str], None]) -> None:
    """Serve until a signal comes; exit with 1 if the worker died."""
    # the reader's own limit counts all pixels alike; the service's is stricter, except for JPEG
    os.environ["RECAP_MAX_PIXELS"] = str(2 * config.max_pixels)
    app = create_app(captioner, config)
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
    logger.setLevel(logging.INFO)
    build_index(captioner.datastore)
    # uvicorn raises the signal that ended it once more, which would make the end look like a failure
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    settings = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        timeout_graceful_shutdown=int(config.timeout + config.body_timeout) + 1,
    )
    listening.listen(settings.backlog)
    host, port = listening.getsockname()[:2]
    tell(f"serving {config.pack} on http://{f'[{host}]' if ':' in host else host}:{port}")
    server = _Server(settings)
    app.state.on_death = partial(setattr, server, "should_exit", True)
    server.run(sockets=[listening])
    metrics = app.state.service.metrics
    tell(f"stopped; {metrics.received} requests came, {metrics.answered} were answered")
    if app.state.service.batcher.died:
        sys.exit(1)


class _Server(uvicorn.Server):
    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.config.app.state.stopping = True  # type: ignore[union-attr]
        super().handle_exit(sig, frame)
