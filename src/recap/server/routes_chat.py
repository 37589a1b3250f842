"""Routes that clients of OpenAI's and Ollama's vision models speak to, unchanged.

What a prompt asks for is read from its words: a caption, an alt text, keywords, or whether a caption is right.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Path, Request
from pydantic import BaseModel, Field
from starlette.responses import JSONResponse, Response, StreamingResponse

from recap import __version__
from recap.batch.tags import TAG_SCORE
from recap.captioner import raise_error
from recap.server import forms
from recap.server.batching import Picture, Task
from recap.server.middleware import ACCOUNT
from recap.server.service import PROBLEMS, Service, service_of
from recap.types import UNSURE_BELOW, Caption, Tag

Wish = Literal["caption", "alt", "tags", "judge", "other"]

ABILITIES = (
    "I caption pictures: send one, and ask for a caption, an alt text, tags, or whether a caption is right "
    '(Is "a dog on a sofa" right?).'
)
CANNOT = "I cannot answer that. " + ABILITIES

MAX_PROMPT = 4000
"""Characters of a prompt that are looked at: patterns may take the square of them."""

_QUOTED = re.compile(r"[\"\u201c\u201e]([^\"\u201c\u201d\u201e]{2,1000})[\"\u201d\u201c]")
_QUESTION = re.compile(
    r"^\W*(?:please\W+)?(?:answer\b.{0,40}?:\s*)?(?:is there|are there|(?:is|are) (?:this|that|it|these)|"
    r"(?:do|can) you see|do(?:es)? (?:this|the|it)(?: (?:image|picture|photo)?\s*)?"
    r"(?:show|contain|have)s?)\s+(.+?)\s*\?",
    re.IGNORECASE | re.DOTALL,
)
_WHERE = re.compile(r"\s+(?:in|on) (?:this|the) (?:image|picture|photo)(?:graph)?$", re.IGNORECASE)
_YES_NO = re.compile(
    r"\byes\b.{0,10}\bno\b|\b(?:right|correct|true|fit|fits|match|matches|describe|describes)\b", re.IGNORECASE
)
_TAGS = re.compile(r"\b(?:tag|tags|keyword|keywords|labels|hashtags)\b", re.IGNORECASE)
_ALT = re.compile(r"\balt(?:ernative)?\b", re.IGNORECASE)
_OTHER = re.compile(
    r"\b(?:how many|how much|count|why|who|where|when|translate|ocr|transcribe|read|poem|story|code|compare)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a prompt asks for."""

    wish: Wish
    statement: str = ""
    """The caption to be judged."""


def read_prompt(text: str) -> Wanted:
    """Return what a prompt asks for; one that says nothing else asks for a caption."""
    text = " ".join(text[:MAX_PROMPT].split())
    quoted, question = _QUOTED.search(text), _QUESTION.search(text)
    if quoted and _YES_NO.search(text):
        return Wanted("judge", quoted[1].strip())
    if question:
        return Wanted("judge", _WHERE.sub("", question[1])[:1000])
    if _TAGS.search(text):
        return Wanted("tags")
    if _ALT.search(text):
        return Wanted("alt")
    return Wanted("other" if _OTHER.search(text) else "caption")


def tell_caption(caption: Caption, wish: Wish) -> str:
    """Return a caption as an answer; an alt text stands alone, since programs put it into pages."""
    if wish == "alt":
        return caption.text
    sure = f" (I am not sure of this: {caption.confidence:.0%}.)" if caption.unsure and caption.confidence else ""
    return f"{CANNOT} What I can say of this picture: {caption.text}{sure}" if wish == "other" else caption.text + sure


def tell_tags(tags: Sequence[Tag]) -> str:
    """Return keywords as an answer."""
    return ", ".join(tag.text for tag in tags) or "I found no keyword that I am sure enough of."


def tell_judgement(statement: str, chance: float) -> str:
    """Return whether a caption is right, as an answer."""
    if chance >= UNSURE_BELOW:
        return f'Yes, "{statement}" is probably right ({chance:.0%} sure).'
    return f'No, "{statement}" is probably not right ({1 - chance:.0%} sure).'


def tell_json(caption: Caption, tags: Sequence[Tag]) -> str:
    """Return caption and keywords as a json object, for programs that ask for one."""
    values = {"caption": caption.text, "confidence": caption.confidence, "tags": [tag.text for tag in tags]}
    return json.dumps(values, ensure_ascii=False)


chat_router = APIRouter(tags=["chat"], responses=PROBLEMS)
Here = Annotated[Service, Depends(service_of)]

MODEL = "recap"
MAX_MESSAGES = 200
MAX_TEXT = 100_000
"""Characters of a prompt."""

_Prompt = Annotated[str, Field(max_length=MAX_TEXT)]
_Base64 = Annotated[str, Field(json_schema_extra={"format": "byte"})]
_Pictures = Annotated[list[_Base64], Field(fail_fast=True)]


# clients send many more settings, which mean nothing here and are passed over
class ImageUrl(BaseModel):
    """A picture, as OpenAI's clients send it."""

    url: str = Field(description="data:image/...;base64,..., or an address where recap serve --allow-urls allows it.")


class Part(BaseModel):
    """A part of a message: a text or a picture."""

    type: Literal["text", "image_url"]
    text: _Prompt = ""
    image_url: ImageUrl | None = None


class Message(BaseModel):
    """A message of a conversation, as OpenAI's clients send it."""

    role: str = Field(max_length=50)
    content: _Prompt | Annotated[list[Part], Field(fail_fast=True)] | None = None


class ResponseFormat(BaseModel):
    """In which form the answer is wanted."""

    type: str = Field("text", max_length=50)


class Completion(BaseModel):
    """What OpenAI's clients send."""

    model: str = Field(MODEL, max_length=200)
    messages: list[Message] = Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
    stream: bool | None = False
    response_format: ResponseFormat | None = None


class OllamaMessage(BaseModel):
    """A message of a conversation, as Ollama's clients send it."""

    role: str = Field(max_length=50)
    content: _Prompt | None = ""
    images: _Pictures | None = Field(None, description="Pictures in base64.")


class OllamaChat(BaseModel):
    """What Ollama's clients send to go on with a conversation."""

    model: str = Field(MODEL, max_length=200)
    messages: list[OllamaMessage] = Field([], max_length=MAX_MESSAGES, fail_fast=True)
    stream: bool | None = True
    format: Any = None


class OllamaGenerate(BaseModel):
    """What Ollama's clients send for one answer."""

    model: str = Field(MODEL, max_length=200)
    prompt: _Prompt | None = ""
    images: _Pictures | None = Field(None, description="Pictures in base64.")
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


def _answers(stream: str, schema: dict[str, Any]) -> dict[int | str, dict[str, Any]]:
    return {200: {**_ANSWER[200], "content": {**_ANSWER[200]["content"], stream: {"schema": schema}}}}


_EVENTS, _LINES = _answers("text/event-stream", {"type": "object"}), _answers("application/x-ndjson", {})


@chat_router.post(
    "/v1/chat/completions", openapi_extra=_describe(Completion), responses=_EVENTS, response_class=Response
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
    message, words = {"role": "assistant", "content": text}, len(text.split())
    choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
    usage = {"prompt_tokens": 0, "completion_tokens": words, "total_tokens": words}
    return JSONResponse({**head, "object": "chat.completion", "choices": [choice], "usage": usage})


@chat_router.get("/v1/models", responses=_ANSWER)
async def models() -> dict[str, Any]:
    """List the one model, as OpenAI's API does."""
    return {"object": "list", "data": [_model(MODEL)]}


@chat_router.get("/v1/models/{model}", responses=_ANSWER)
async def model(model: Annotated[str, Path(max_length=200)]) -> dict[str, Any]:
    """Describe the model."""
    return _model(model)


@chat_router.post("/api/generate", openapi_extra=_describe(OllamaGenerate), responses=_LINES, response_class=Response)
async def generate(request: Request, service: Here) -> Response:
    """Answer a prompt about pictures as Ollama does."""
    asked = OllamaGenerate.model_validate(await forms.read_json(request))
    messages: list[_Turn] = [(asked.prompt or "", asked.images or [], [])]
    return await _ollama(request, service, asked, messages, lambda text: {"response": text})


@chat_router.post("/api/chat", openapi_extra=_describe(OllamaChat), responses=_LINES, response_class=Response)
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
    facts = {"model_info": {"general.architecture": MODEL}, "capabilities": ["completion", "vision"]}
    return {"details": _DETAILS, **facts, "modified_at": _now()}


@chat_router.get("/api/version", responses=_ANSWER)
async def version() -> dict[str, str]:
    """Tell the version."""
    return {"version": __version__}


_UNTOLD = {"parameter_size": "", "quantization_level": ""}
_DETAILS = {"parent_model": "", "format": "onnx", "family": MODEL, "families": [MODEL], **_UNTOLD}

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
        return ABILITIES
    images, urls = sent
    files = [(f"picture {number + 1}", forms.decode_base64(text, number)) for number, text in enumerate(images)]
    received = forms.Received(files, list(urls), {})
    found = await forms.read_pictures(received, service.config, service.fetcher, request.scope[ACCOUNT].take)
    pictures = [raise_error(item) for item in found]
    answers = await _ask(request, service, pictures, read_prompt(prompt), wants_json)
    return answers[0] if len(answers) == 1 else "\n".join(f"{n}. {text}" for n, text in enumerate(answers, 1))


async def _ask(
    request: Request, service: Service, pictures: Sequence[Picture], wanted: Wanted, wants_json: bool
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
    done = await service.run_tasks(request, tasks)
    if wants_json:
        return [tell_json(caption, found) for caption, found in zip(done[::2], done[1::2], strict=True)]
    if wanted.wish == "judge":
        return [tell_judgement(wanted.statement, chance) for chance in done]
    if wanted.wish == "tags":
        return [tell_tags(found) for found in done]
    return [tell_caption(caption, wanted.wish) for caption in done]


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
