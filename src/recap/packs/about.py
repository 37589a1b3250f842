"""What people should know about a pack before they use it or pass it on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Self

from recap.errors import InputError


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
