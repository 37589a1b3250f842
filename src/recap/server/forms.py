"""From the body of a request to pictures and settings.

A picture is known by its content. Its name is only ever shown, and no part of a request is taken for a path. Files
stay in memory: the parser below is the one of Starlette, except that nothing is written to a temporary file.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import sys
import warnings
from dataclasses import dataclass, field
from typing import Any, TypeVar

from PIL import Image, UnidentifiedImageError
from python_multipart.exceptions import FormParserError
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from recap.encoders.fetching import Fetcher, Take
from recap.encoders.images import decoded_pixels, formats, open_picture
from recap.errors import ImageError
from recap.server.batching import Picture
from recap.server.config import MAX_FIELD_BYTES, MAX_FIELDS, MAX_JSON_PARTS, MAX_NAME, ServerConfig
from recap.server.middleware import ACCOUNT
from recap.server.problems import Problem
from recap.server.schemas import Form

IMAGE, URL = "image", "url"
"""The fields that name pictures."""

AnyForm = TypeVar("AnyForm", bound=Form)


class MemoryParser(MultiPartParser):
    """A parser that keeps files in memory; ``limits.BodyLimits`` sees to it that they are not too many."""

    spool_max_size = sys.maxsize


@dataclass(frozen=True, slots=True)
class Received:
    """The parts of a form."""

    files: list[tuple[str, bytes]] = field(repr=False)
    urls: list[str]
    fields: dict[str, list[Any]]


def decoding_cost(picture: Image.Image, content: bytes | None = None) -> int:
    """Return how many pixels a picture counts for, by the memory that decoding takes.

    A JPEG is scaled down while it is decoded and counts half; deep grey values are scaled in floating point and count
    twice.
    """
    pixels = decoded_pixels(picture, content)
    if picture.format in ("JPEG", "MPO"):
        return pixels // 2
    return pixels * 2 if picture.mode.startswith(("I", "F")) else pixels


def sniff(name: str, content: bytes, max_pixels: int) -> Picture:
    """Look at the header of a picture, whatever it is called, and refuse what is none or too large."""
    if not content:
        raise ImageError(f"{name}: the file is empty")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with open_picture(content) as picture:
                size, cost = picture.size, decoding_cost(picture, content)
    except UnidentifiedImageError as error:
        raise ImageError(f"{name}: not a picture that is read here ({', '.join(formats())})") from error
    except Exception as error:  # readers of broken files raise nearly anything
        raise ImageError(f"{name}: cannot be decoded ({error or type(error).__name__})") from error
    if cost > max_pixels:
        raise ImageError(f"{name}: {size[0]}x{size[1]} pixels are over the limit of {max_pixels}")
    return Picture(name, content, cost)


def shown_name(name: str | None, number: int) -> str:
    """Return a name for messages: without folders, without what cannot be printed, not too long."""
    last = re.split(r"[/\\]", name or "")[-1]
    printable = "".join(character for character in last if character.isprintable()).strip()
    return printable[:MAX_NAME] or f"picture {number + 1}"


async def parse_body(request: Request, config: ServerConfig) -> Received:
    """Read a form, a json body with pictures in base64, or a picture as it is with its settings in the address."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        return await _parse_form(request, config)
    if kind == "application/json":
        return await _parse_json(request)
    if kind.startswith("image/") or kind == "application/octet-stream":
        query = request.query_params
        fields = {name: query.getlist(name) for name in query}
        return Received([(shown_name("", 0), await request.body())], [], fields)
    raise Problem(
        415, "send a form (multipart/form-data, pictures in the field 'image'), json with base64, or a picture as it is"
    )


async def read_json(request: Request) -> Any:
    """Return the json of a body, parsed beside the loop that serves everybody."""
    body = await request.body()
    if sum(body.count(sign) for sign in (b",", b"{", b"[")) > MAX_JSON_PARTS:
        raise Problem(413, "the json has too many parts")
    if not body.isascii() or b"\\u" in body:
        # one letter beyond the first planes, and each of the text takes four bytes
        request.scope[ACCOUNT].take(4 * len(body))
    try:
        return await asyncio.to_thread(json.loads, body)
    except (ValueError, RecursionError) as error:
        raise Problem(400, "the body is no json") from error


def decode_base64(text: Any, number: int) -> bytes:
    """Return the bytes of a picture in base64, with or without the beginning of a ``data:`` address."""
    try:
        head, comma, data = text.partition(",") if text.startswith("data:") else ("", "", text)
        if head and not (comma and head.endswith(";base64")):
            raise ValueError("not base64")
        return base64.b64decode(data, validate=True)
    except (AttributeError, ValueError) as error:
        raise Problem(422, f"picture {number + 1} is not a text in base64") from error


async def _parse_json(request: Request) -> Received:
    values = await read_json(request)
    if not isinstance(values, dict):
        raise Problem(422, f"the json must be an object with the picture in '{IMAGE}'")
    pictures, urls = (_listed(values.pop(name, [])) for name in (IMAGE, URL))
    files = [(shown_name("", number), decode_base64(text, number)) for number, text in enumerate(pictures)]
    if len(values) > MAX_FIELDS:
        raise Problem(413, f"{len(values)} fields are over the limit of {MAX_FIELDS}")
    if not all(isinstance(url, str) for url in urls):
        raise Problem(422, f"'{URL}' must be a text or several")
    return Received(files, urls, {name: _listed(value) for name, value in values.items() if value is not None})


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


async def _parse_form(request: Request, config: ServerConfig) -> Received:
    parser = MemoryParser(
        request.headers,
        request.stream(),
        max_files=config.max_pictures,
        max_fields=MAX_FIELDS,
        max_part_size=MAX_FIELD_BYTES,
    )
    try:
        items = (await parser.parse()).multi_items()
    except (MultiPartException, FormParserError) as error:
        raise Problem(400, f"the form cannot be read: {getattr(error, 'message', error)}") from error
    received = Received([], [], {})
    for name, value in items:
        if isinstance(value, UploadFile):
            if name != IMAGE:
                raise Problem(422, f"{name[:MAX_NAME]}: unknown file; pictures are in the field '{IMAGE}'")
            received.files.append((shown_name(value.filename, len(received.files)), await value.read()))
            await value.close()
        elif name == URL:
            received.urls.append(value)
        elif name == IMAGE:
            raise Problem(422, f"'{IMAGE}' must be a file: give its part a filename")
        else:
            received.fields.setdefault(name, []).append(value)
    return received


def parse_settings(received: Received, form: type[AnyForm]) -> AnyForm:
    """Return the fields of a form, checked; a field that has one value may come once."""
    values: dict[str, Any] = {}
    for name, given in received.fields.items():
        known = form.model_fields.get(name)
        if known is None or _is_list(known.annotation):
            values[name] = given
        elif len(given) != 1:
            raise Problem(422, f"{name}: given {len(given)} times")
        else:
            values[name] = given[0]
    return form.model_validate(values)


async def read_pictures(
    received: Received, config: ServerConfig, fetcher: Fetcher | None, take: Take
) -> list[Picture | ImageError]:
    """Return the pictures of a form, files first, or for each the reason why it is none.

    ``take`` receives the number of bytes that are fetched, and raises when there is no room for them.
    """
    count = len(received.files) + len(received.urls)
    if count == 0:
        ways = f"'{IMAGE}' (a file) or '{URL}'" if fetcher else f"'{IMAGE}' (a file)"
        raise Problem(422, f"no picture: send at least one in the field {ways}")
    if count > config.max_pictures:
        raise Problem(413, f"{count} pictures are over the limit of {config.max_pictures} a request")
    if received.urls and fetcher is None:
        raise Problem(403, "pictures by address are not allowed here; recap serve --allow-urls allows them")
    sent = [asyncio.to_thread(_try_sniff, name, content, config.max_pixels) for name, content in received.files]
    fetched = [_fetch(fetcher, url, number, config, take) for number, url in enumerate(received.urls) if fetcher]
    return list(await asyncio.gather(*sent, *fetched))


async def _fetch(fetcher: Fetcher, url: str, number: int, config: ServerConfig, take: Take) -> Picture | ImageError:
    try:
        content = await fetcher.fetch(url, take)
    except ImageError as error:
        return error
    name = shown_name(url.partition("?")[0].partition("#")[0], number)
    return await asyncio.to_thread(_try_sniff, name, content, config.max_pixels)


def _try_sniff(name: str, content: bytes, max_pixels: int) -> Picture | ImageError:
    try:
        return sniff(name, content, max_pixels)
    except ImageError as error:
        return error


def _is_list(annotation: Any) -> bool:
    return getattr(annotation, "__origin__", None) is list
