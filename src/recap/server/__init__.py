"""``recap serve``: captions, retrieval and scores over HTTP.

    app               the application, put together: ``create_app``; socket and signals of ``recap serve``
    config            what the person who starts the service decides, and every limit
    routes            caption, retrieve, score, map, search; packs, health, metrics, documentation; the page
    routes_chat       what clients of OpenAI and Ollama ask, answered in sentences
    routes_datastore  the captions of the pack, looked at and changed
    page/             the files of the page for people
    batching          one worker that serves many requests at once
    service           what the worker does for each kind of request; a request waits for it, or goes away
    forms             from the body of a request to pictures and settings
    middleware        counters and the log; keys, hosts, headers; how much of a body is read, how long, and held
    problems          errors as problem+json
    schemas           what goes in and comes out

Nothing that is sent is written to the disk or to the log.
"""

from recap.server.app import create_app
from recap.server.config import ServerConfig

__all__ = ["ServerConfig", "create_app"]
