"""The application, put together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from fastapi import FastAPI

from recap import __version__
from recap.captioner import ReCap
from recap.encoders.apart import ApartDecoder
from recap.encoders.network import cores
from recap.server import problems
from recap.server.batching import Batcher
from recap.server.config import ServerConfig
from recap.server.fetching import Fetcher
from recap.server.metrics import Metrics, Observer
from recap.server.middleware import BodyLimits, Guard
from recap.server.page import page_router
from recap.server.routes import captions_router, status_router
from recap.server.routes_datastore import datastore_router
from recap.server.service import Service
from recap.server.tasks import Engine

DESCRIPTION = "Captions for pictures, with their evidence, and scores for captions. Errors are problem+json."
FETCH_SECONDS = 15.0
MAX_DECODERS = 4
DECODER_MEMORY = 512 << 20
"""Bytes that a process which decodes may have, apart from those for pixels."""
PIXEL_MEMORY = 32
"""Bytes that decoding and converting a pixel may take."""


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
        if decoder is not None:
            decoder.start()
        batcher.start()
        try:
            yield
        finally:
            batcher.close()
            if decoder is not None:
                decoder.close()
            if fetcher is not None:
                fetcher.close()

    # the usual pages of documentation load scripts from elsewhere
    app = FastAPI(
        title="recap",
        version=__version__,
        description=DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    app.state.stopping = False
    app.state.on_death = lambda: None
    app.state.service = Service(chosen, Engine(captioner), batcher, metrics, fetcher)
    problems.install(app)
    for router in (captions_router, datastore_router, status_router, page_router()):
        app.include_router(router)
    # the last one added is the first to see a request
    app.add_middleware(BodyLimits, config=chosen, metrics=metrics)
    app.add_middleware(Guard, config=chosen)
    app.add_middleware(Observer, metrics=metrics)
    return app


def _decoder(config: ServerConfig) -> ApartDecoder:
    return ApartDecoder(
        processes=min(cores(), MAX_DECODERS),
        # a JPEG may have twice as many, see ``forms.decoding_cost``
        max_pixels=2 * config.max_pixels,
        memory=DECODER_MEMORY + PIXEL_MEMORY * config.max_pixels,
        seconds=config.timeout,
    )
