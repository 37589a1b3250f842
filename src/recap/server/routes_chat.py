"""Routes that clients of OpenAI's and Ollama's vision models speak to, unchanged; see ``recap.server.chat``."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse, Response, StreamingResponse

from recap import __version__
from recap.batch.tags import TAG_SCORE
from recap.errors import ImageError
from recap.server import chat, forms
from recap.server.batching import Picture, Task
from recap.server.middleware import ACCOUNT
from recap.server.problems import Problem
from recap.server.service import PROBLEMS, Service, service_of, wait_for_results

chat_router = APIRouter(tags=["chat"], responses=PROBLEMS)
Here = Annotated[Service, Depends(service_of)]

MODEL = "recap"
MAX_MESSAGES = 200
MAX_TEXT = 100_000
"""Characters of a prompt."""

_Prompt = Annotated[str, Field(max_length=MAX_TEXT)]
_Base64 = Annotated[str, Field(json_schema_extra={"format": "byte"})]


class _Lenient(BaseModel):
    """Clients send many settings that mean nothing here."""

    model_config = ConfigDict(extra="ignore")


class ImageUrl(_Lenient):
    """A picture, as OpenAI's clients send it."""

    url: str = Field(description="data:image/...;base64,..., or an address where recap serve --allow-urls allows it.")


class Part(_Lenient):
    """A part of a message: a text or a picture."""

    type: Literal["text", "image_url"]
    text: _Prompt = ""
    image_url: ImageUrl | None = None


class Message(_Lenient):
    """A message of a conversation, as OpenAI's clients send it."""

    role: str = Field(max_length=50)
    content: _Prompt | list[Part] | None = None


class ResponseFormat(_Lenient):
    """In which form the answer is wanted."""

    type: str = Field("text", max_length=50)


class Completion(_Lenient):
    """What OpenAI's clients send."""

    model: str = Field(MODEL, max_length=200)
    messages: list[Message] = Field(min_length=1, max_length=MAX_MESSAGES)
    stream: bool | None = False
    response_format: ResponseFormat | None = None


class OllamaMessage(_Lenient):
    """A message of a conversation, as Ollama's clients send it."""

    role: str = Field(max_length=50)
    content: _Prompt | None = ""
    images: list[_Base64] | None = Field(None, description="Pictures in base64.")


class OllamaChat(_Lenient):
    """What Ollama's clients send to go on with a conversation."""

    model: str = Field(MODEL, max_length=200)
    messages: list[OllamaMessage] = Field([], max_length=MAX_MESSAGES)
    stream: bool | None = True
    format: Any = None


class OllamaGenerate(_Lenient):
    """What Ollama's clients send for one answer."""

    model: str = Field(MODEL, max_length=200)
    prompt: _Prompt | None = ""
    images: list[_Base64] | None = Field(None, description="Pictures in base64.")
    stream: bool | None = True
    format: Any = None


def _describe(model: type[BaseModel]) -> dict[str, Any]:
    """Return the OpenAPI description of a body that is read beside the loop."""
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    schema = _inline(schema, schema.pop("$defs", {}))
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _inline(schema: Any, known: dict[str, Any]) -> Any:
    if isinstance(schema, list):
        return [_inline(item, known) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inline(known[schema["$ref"].rpartition("/")[2]], known)
    return {name: _inline(value, known) for name, value in schema.items()}


_ANSWER: dict[int | str, dict[str, Any]] = {
    200: {"description": "The answer, or a stream of its parts.", "content": {"application/json": {"schema": {}}}}
}
_EVENTS: dict[str, Any] = {"text/event-stream": {"schema": {"type": "object"}}}
_LINES: dict[str, Any] = {"application/x-ndjson": {"schema": {}}}


def _answers(stream: dict[str, Any]) -> dict[int | str, dict[str, Any]]:
    (answer,) = _ANSWER.values()
    return {200: {**answer, "content": {**answer["content"], **stream}}}


@chat_router.post(
    "/v1/chat/completions", openapi_extra=_describe(Completion), responses=_answers(_EVENTS), response_class=Response
)
async def complete(request: Request, service: Here) -> Response:
    """Answer as OpenAI's vision models do: a caption, an alt text, keywords, or whether a caption is right."""
    asked = Completion.model_validate(await forms.read_json(request))
    messages = [_unpack(message) for message in asked.messages]
    wants_json = asked.response_format is not None and asked.response_format.type.startswith("json")
    text = await _answer(request, service, messages, wants_json)
    head = {"id": f"chatcmpl-{secrets.token_hex(12)}", "created": int(time.time()), "model": asked.model}
    if asked.stream:
        return _stream(_completion_events(head, text), "text/event-stream")
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": "stop",
        "logprobs": None,
    }
    usage = {"prompt_tokens": 0, "completion_tokens": len(text.split()), "total_tokens": len(text.split())}
    return JSONResponse({**head, "object": "chat.completion", "choices": [choice], "usage": usage})


@chat_router.get("/v1/models", responses=_ANSWER)
async def models() -> dict[str, Any]:
    """List the one model, as OpenAI's API does."""
    return {"object": "list", "data": [_model(MODEL)]}


@chat_router.get("/v1/models/{model}", responses=_ANSWER)
async def model(model: Annotated[str, Path(max_length=200)]) -> dict[str, Any]:
    """Describe the model."""
    return _model(model)


@chat_router.post(
    "/api/generate", openapi_extra=_describe(OllamaGenerate), responses=_answers(_LINES), response_class=Response
)
async def generate(request: Request, service: Here) -> Response:
    """Answer a prompt about pictures as Ollama does."""
    asked = OllamaGenerate.model_validate(await forms.read_json(request))
    messages: list[_Turn] = [(asked.prompt or "", asked.images or [], [])]
    return await _ollama(request, service, asked, messages, lambda text: {"response": text})


@chat_router.post("/api/chat", openapi_extra=_describe(OllamaChat), responses=_answers(_LINES), response_class=Response)
async def converse(request: Request, service: Here) -> Response:
    """Answer the last message of a conversation as Ollama does."""
    asked = OllamaChat.model_validate(await forms.read_json(request))
    messages: list[_Turn] = [
        (item.content or "", item.images or [], []) for item in asked.messages if item.role == "user"
    ]
    return await _ollama(
        request, service, asked, messages, lambda text: {"message": {"role": "assistant", "content": text}}
    )


@chat_router.get("/api/tags", responses=_ANSWER)
async def ollama_models(service: Here) -> dict[str, Any]:
    """List the one model, as Ollama does."""
    name = f"{MODEL}:latest"
    digest = hashlib.sha256(service.engine.captioner.encoder.image.fingerprint.encode()).hexdigest()
    facts = {"name": name, "model": name, "modified_at": _now(), "size": 0, "digest": digest, "details": _DETAILS}
    return {"models": [facts]}


@chat_router.post("/api/show", responses=_ANSWER)
async def show() -> dict[str, Any]:
    """Describe the model, as Ollama does."""
    return {
        "details": _DETAILS,
        "model_info": {"general.architecture": MODEL},
        "capabilities": ["completion", "vision"],
        "modified_at": _now(),
    }


@chat_router.get("/api/version", responses=_ANSWER)
async def version() -> dict[str, str]:
    """Tell the version."""
    return {"version": __version__}


_DETAILS = {
    "parent_model": "",
    "format": "onnx",
    "family": MODEL,
    "families": [MODEL],
    "parameter_size": "",
    "quantization_level": "",
}

_Turn = tuple[str, Sequence[str], Sequence[str]]
"""What a user said: a text, pictures in base64, and addresses of pictures."""


def _unpack(message: Message) -> _Turn:
    if message.role != "user" or message.content is None:
        return "", [], []
    if isinstance(message.content, str):
        return message.content, [], []
    addresses = [part.image_url.url for part in message.content if part.image_url is not None]
    inside = [url for url in addresses if url.startswith("data:")]
    texts = " ".join(part.text for part in message.content if part.type == "text")
    return texts, inside, [url for url in addresses if not url.startswith("data:")]


async def _answer(request: Request, service: Service, turns: Sequence[_Turn], wants_json: bool) -> str:
    """Return the answer to the last prompt, about the pictures that were sent last."""
    prompt = next((text for text, *_ in reversed(turns) if text.strip()), "")
    sent = next(((images, urls) for _, images, urls in reversed(turns) if images or urls), None)
    if sent is None:
        return chat.ABILITIES
    images, urls = sent
    if len(images) + len(urls) > service.config.max_pictures:
        count = len(images) + len(urls)
        raise Problem(413, f"{count} pictures are over the limit of {service.config.max_pictures} a request")
    files = [(f"picture {number + 1}", forms.decode_base64(text, number)) for number, text in enumerate(images)]
    received = forms.Received(files, list(urls), {})
    found = await forms.read_pictures(received, service.config, service.fetcher, request.scope[ACCOUNT].take)
    pictures = []
    for item in found:
        if isinstance(item, ImageError):
            raise item
        pictures.append(item)
    wanted = chat.read_prompt(prompt)
    answers = await _ask(request, service, pictures, wanted, wants_json)
    return answers[0] if len(answers) == 1 else "\n".join(f"{n}. {text}" for n, text in enumerate(answers, 1))


async def _ask(
    request: Request, service: Service, pictures: Sequence[Picture], wanted: chat.Request, wants_json: bool
) -> list[str]:
    """Let the worker do what is asked for, and return an answer for each picture."""
    engine = service.engine
    captions = [Task(engine.caption, frozenset(), ((),), picture) for picture in pictures]
    tags = [Task(engine.tag, None, (TAG_SCORE,), picture) for picture in pictures]
    if wants_json:
        tasks = [task for pair in zip(captions, tags, strict=True) for task in pair]
    elif wanted.wish == "judge":
        tasks = [Task(engine.judge, wanted.statement, (), picture) for picture in pictures]
    else:
        tasks = tags if wanted.wish == "tags" else captions
    done = await wait_for_results(request, service.batcher.submit(tasks), service.config.timeout)
    for result in done:
        if isinstance(result, BaseException):
            raise result
    if wants_json:
        return [chat.tell_json(caption, found) for caption, found in zip(done[::2], done[1::2], strict=True)]
    if wanted.wish == "judge":
        return [chat.tell_judgement(wanted.statement, chance) for chance in done]
    if wanted.wish == "tags":
        return [chat.tell_tags(found) for found in done]
    return [chat.tell_caption(caption, wanted.wish) for caption in done]


async def _ollama(
    request: Request, service: Service, asked: OllamaChat | OllamaGenerate, turns: Sequence[_Turn], part: Any
) -> Response:
    started = time.perf_counter_ns()
    text = await _answer(request, service, turns, bool(asked.format)) if turns else ""
    head = {"model": asked.model, "created_at": _now()}
    spent = time.perf_counter_ns() - started
    last = {"done": True, "done_reason": "stop" if turns else "load", "total_duration": spent, "load_duration": 0}
    counts = {"prompt_eval_count": 0, "eval_count": len(text.split()), "eval_duration": spent}
    if asked.stream is False:
        return JSONResponse({**head, **part(text), **last, **counts})
    return _stream(_ollama_lines(head, text, part, {**last, **counts}), "application/x-ndjson")


async def _ollama_lines(head: dict[str, Any], text: str, part: Any, last: dict[str, Any]) -> AsyncIterator[str]:
    for word in _pieces(text):
        yield json.dumps({**head, **part(word), "done": False}) + "\n"
    yield json.dumps({**head, **part(""), **last}) + "\n"


async def _completion_events(head: dict[str, Any], text: str) -> AsyncIterator[str]:
    def event(delta: dict[str, str], finish: str | None) -> str:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        chunk = {**head, "object": "chat.completion.chunk", "choices": [choice]}
        return f"data: {json.dumps(chunk)}\n\n"

    yield event({"role": "assistant", "content": ""}, None)
    for word in _pieces(text):
        yield event({"content": word}, None)
    yield event({}, "stop")
    yield "data: [DONE]\n\n"


def _pieces(text: str) -> list[str]:
    """Return a text in the parts in which it is streamed: words with the space behind them."""
    return re.findall(r"\S+\s*|\s+", text)


def _stream(parts: AsyncIterator[str], media_type: str) -> StreamingResponse:
    return StreamingResponse(parts, media_type=media_type, headers={"X-Accel-Buffering": "no"})


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": MODEL}


def _now() -> str:
    return datetime.now(UTC).isoformat()
