"""``recap serve``: captions, retrieval and scores over HTTP.

    app               the application, put together: ``create_app``
    config            what the person who starts the service decides, and every limit
    routes            caption, retrieve, score, map; packs, health, metrics, documentation; the page
    routes_datastore  the captions of the pack, looked at and changed
    page/             the files of the page for people
    batching          one worker that serves many requests at once
    tasks             what the worker does for each kind of request
    service           what the routes share; a request waits for the worker, or goes away
    forms             from the body of a request to pictures and settings
    middleware        keys, names of hosts, headers; how much of a body is read and how long, and held in memory
    problems          errors as problem+json
    metrics           counters for Prometheus, and one line in the log for each request
    schemas           what goes in and comes out
    process           options, socket, signals: what ``recap serve`` does

Nothing that is sent is written to the disk or to the log.
"""

from recap.server.app import create_app
from recap.server.config import ServerConfig

__all__ = ["ServerConfig", "create_app"]
