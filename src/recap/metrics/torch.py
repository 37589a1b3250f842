"""Caption metrics for training loops, in the manner of torchmetrics: ``update``, ``compute``, ``reset``.

    metric = CiderD()
    for batch in loader:
        metric.update(captions, references)     # lists of texts; of references a text or a list for each
    value = metric.compute()                    # a tensor, the same number as recap.metrics.cider_d gives for all

Where torchmetrics is installed they are its metrics: ``MetricCollection`` and Lightning's ``self.log`` take them, and
processes are gathered by it. Where it is not they are modules of torch that gather processes themselves.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from recap.errors import InputError
from recap.metrics.evaluate import evaluate

Texts = str | Sequence[str]


class _Accumulating(torch.nn.Module):
    """What of torchmetrics' base class is used here, for those who do not have it."""

    update: Callable[..., None]
    compute: Callable[[], torch.Tensor]

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.reset()

    def add_state(self, name: str, default: list[torch.Tensor], dist_reduce_fx: str) -> None:
        """Do nothing: there is one state, which is empty at first."""

    def reset(self) -> None:
        """Forget everything."""
        self.kept: list[torch.Tensor] = []

    def forward(self, *arguments: Any, **named: Any) -> Any:
        """Add a batch, and return the value of that batch alone."""
        before, self.kept = self.kept, []
        self.update(*arguments, **named)
        value = self.compute()
        self.kept = before + self.kept
        return value

    def gathered(self) -> list[torch.Tensor]:
        """Return what all processes were given."""
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return self.kept
        everybody: list[Any] = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(everybody, [piece.cpu() for piece in self.kept])
        return [piece for kept in everybody for piece in kept]


if TYPE_CHECKING:
    Base = _Accumulating
else:
    try:
        from torchmetrics import Metric as Base
    except Exception:  # one whose own parts do not fit together is no better than none
        Base = _Accumulating


class CaptionMetric(Base):
    """A metric of captions and references by its name in ``recap.metrics``, such as ``cider-d``.

    Args:
        name: one that needs no pictures.
        options: for torchmetrics, where it is installed, such as ``dist_sync_on_step``.
    """

    name = ""
    is_differentiable = False
    higher_is_better = True
    full_state_update = False

    def __init__(self, name: str = "", **options: Any) -> None:
        super().__init__(**options)
        self.name = name or self.name
        self.add_state("kept", default=[], dist_reduce_fx="cat")

    def update(self, preds: Texts, target: Sequence[Texts]) -> None:
        """Add captions and the references of each; a single caption comes with its list of references."""
        if isinstance(preds, str):
            preds, target = [preds], [target]  # type: ignore[list-item]
        if len(preds) != len(target):
            raise InputError(f"{len(preds)} captions but references of {len(target)}")
        known = [[texts] if isinstance(texts, str) else list(texts) for texts in target]
        pairs = zip(preds, known, strict=True)
        lines = "".join(json.dumps(pair) + "\n" for pair in pairs)
        # texts as bytes in a tensor: that is what processes exchange
        self.kept.append(torch.frombuffer(bytearray(lines.encode()), dtype=torch.uint8))

    def compute(self) -> torch.Tensor:
        """Return the value of all captions so far, as a fraction."""
        pairs = list(self._pairs())
        if not pairs:
            raise InputError(f"{self.name}: there is nothing to compute; call update first")
        captions, references = zip(*pairs, strict=True)
        report = evaluate(captions, references, metrics=self.name)
        if not report.rows:
            raise InputError(f"{self.name} is not available: {report.unavailable[0].reason}")
        return torch.tensor(report.rows[-1].value)

    def _pairs(self) -> Iterator[tuple[str, list[str]]]:
        kept = self.gathered() if isinstance(self, _Accumulating) else self.kept
        for piece in [kept] if isinstance(kept, torch.Tensor) else kept:
            for line in bytes(piece.cpu().tolist()).splitlines():
                text, references = json.loads(line)
                yield text, references


class Bleu(CaptionMetric):
    """BLEU of up to ``words`` words."""

    def __init__(self, words: int = 4, **options: Any) -> None:
        super().__init__(f"bleu-{words}", **options)


class RougeL(CaptionMetric):
    """ROUGE-L."""

    name = "rouge-l"


class CiderD(CaptionMetric):
    """CIDEr-D; rarity is that among the references of all that was given."""

    name = "cider-d"


class Meteor(CaptionMetric):
    """METEOR, which needs Java."""

    name = "meteor"


class Spice(CaptionMetric):
    """SPICE-py, which needs the extra ``spice``."""

    name = "spice"


class Chair(CaptionMetric):
    """The share of captions that name a thing no reference names."""

    name = "chair"
    higher_is_better = False
