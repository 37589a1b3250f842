"""The card of a pack: what it is made of and what it reached, in the form the Hugging Face hub shows.

What recap writes stands between two marks, and is written anew when the pack changes; the rest belongs to its author.

What people should know about a pack before they use it or pass it on.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Self

from recap.errors import InputError
from recap.packs.settings import Settings


@dataclass(frozen=True, slots=True)
class About:
    """Who made a pack, from what, under which licence, and how well it did."""

    description: str = ""
    author: str = ""
    licence: str = ""
    """Of the captions: an SPDX name such as ``CC-BY-4.0``, or a sentence."""
    data: dict[str, int] = field(default_factory=dict)
    """Counts of what went in: pictures, captions, and what was left out."""
    numbers: dict[str, float] = field(default_factory=dict)
    """What was measured on validation pictures."""
    tuned: tuple[str, ...] = ()
    """The settings that were chosen on those pictures."""

    def but(self, **changes: Any) -> Self:
        """Return the same with some changed; None changes nothing."""
        return replace(self, **{name: value for name, value in changes.items() if value is not None})

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain values, ready for json."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return what ``as_dict`` described; what a newer version added is passed over."""
        known = {name.name: values[name.name] for name in fields(cls) if name.name in values}
        texts = (known.get(name, "") for name in ("description", "author", "licence"))
        counts = (known.get(name, {}) for name in ("data", "numbers"))
        if not all(isinstance(text, str) for text in texts) or not all(isinstance(count, dict) for count in counts):
            raise InputError("what the config says about the pack has a value of the wrong kind")
        numbers = [*known.get("data", {}).values(), *known.get("numbers", {}).values()]
        tuned = known.get("tuned", ())
        if not all(isinstance(number, int | float) for number in numbers) or not all(
            isinstance(name, str) for name in tuned
        ):
            raise InputError("what the config says about the pack has a value of the wrong kind")
        return cls(**{**known, "tuned": tuple(tuned)})


BEGIN, END = "<!-- recap: written by the program, from here -->", "<!-- recap: to here -->"

HUB_LICENCES = re.compile(
    r"apache-2\.0|mit|bsd-[23]-clause|unlicense|mpl-2\.0|(a|l)?gpl-3\.0|odbl|odc-by|pddl|cdla-permissive-[12]\.0"
    r"|cc0-1\.0|cc-by-(2\.0|2\.5|3\.0|4\.0)|cc-by-sa-[34]\.0|cc-by-nc-[234]\.0|cc-by-nd-4\.0|cc-by-nc-nd-[34]\.0"
    r"|cc-by-nc-sa-[234]\.0"
)
"""Licences that the hub knows by name; any other is given in words."""

TITLES = {
    "pictures": "pictures measured",
    "cider_d": "CIDEr-D",
    "nearest_cider_d": "CIDEr-D of the nearest caption alone",
    "i2t_r1": "caption for a picture, recall at 1",
    "i2t_r5": "caption for a picture, recall at 5",
    "i2t_r10": "caption for a picture, recall at 10",
    "t2i_r1": "picture for a caption, recall at 1",
    "t2i_r5": "picture for a caption, recall at 5",
    "t2i_r10": "picture for a caption, recall at 10",
}
"""What the numbers of a pack are called."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a card says."""

    encoder: str
    method: str
    pairs: float
    sources: Mapping[str, int]
    language_model: str
    settings: Settings
    about: About


def new_card(facts: Facts) -> str:
    """Return the card of a new pack."""
    title = facts.about.description.partition("\n")[0].rstrip(".") or "A recap pack"
    return f"{front_matter(facts)}# {title}\n\n{body(facts)}"


def refreshed(card: str, facts: Facts) -> str:
    """Return a card with recap's part of it brought up to date, and everything else as its author left it."""
    part = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}\n?", re.DOTALL)
    if not part.search(card):
        return card
    return part.sub(lambda _: body(facts), card, count=1)


def front_matter(facts: Facts) -> str:
    """Return the lines by which the hub sorts and shows the pack."""
    from huggingface_hub import EvalResult, ModelCardData

    licence = facts.about.licence.strip()
    values: dict[str, Any] = {}
    if licence and HUB_LICENCES.fullmatch(licence.casefold()):
        values["license"] = licence.casefold()
    elif licence:
        values |= {"license": "other", "license_name": licence}
    cider = facts.about.numbers.get("cider_d")
    if cider is not None:
        result = EvalResult(
            task_type="image-to-text",
            dataset_type="validation",
            dataset_name="validation pictures of the pack",
            metric_type="cider-d",
            metric_value=round(cider, 2),
        )
        values |= {"model_name": "recap", "eval_results": [result]}
    data = ModelCardData(
        language=facts.settings.language,
        library_name="recap",
        pipeline_tag="image-to-text",
        tags=["image-captioning", "recap"],
        **values,
    )
    return f"---\n{data.to_yaml().strip()}\n---\n"


def body(facts: Facts) -> str:
    """Return the part of the card that recap writes."""
    captions = sum(facts.sources.values())
    named = ", ".join(f"{name or 'unnamed'} ({count:,})" for name, count in sorted(facts.sources.items()))
    about = facts.about
    rows = {
        "encoder": facts.encoder,
        "map": f"{facts.method}, fitted on {facts.pairs:,.0f} pairs",
        "sources of the captions": named,
        "language": facts.settings.language,
        "language model": facts.language_model,
        "selection": facts.settings.selection or "what suits the language model",
        "author": about.author or "not given",
        "licence of the captions": about.licence or "not given",
        **{name.replace("_", " "): f"{count:,}" for name, count in about.data.items()},
    }
    table = "\n".join(f"| {name} | {_cell(value)} |" for name, value in rows.items())
    return f"""{BEGIN}
Captions images by one linear map into caption space and {captions:,} captions to retrieve from.

| | |
|---|---|
{table}
{_measured(about)}
```python
from recap import ReCap

captioner = ReCap.from_pretrained("path/to/this/folder")
print(captioner.caption("photo.jpg").text)
```

The captions in `datastore/` are the words of whoever wrote them: share this pack only as their licence allows.
{END}
"""


def _measured(about: About) -> str:
    if not about.numbers:
        return ""
    rows = "\n".join(
        f"| {TITLES.get(name, name)} | {value:,.0f} |"
        if name == "pictures"
        else f"| {TITLES.get(name, name)} | {value:.1f} |"
        for name, value in about.numbers.items()
    )
    chosen = f"\nChosen on the same pictures: {', '.join(about.tuned)}." if about.tuned else ""
    return f"""
Measured on validation pictures, which are neither in the map nor in the datastore; points, and recall in per cent.
{chosen}

| | |
|---|---|
{rows}
"""


def _cell(value: object) -> str:
    return " ".join(str(value).replace("|", "\\|").split())
