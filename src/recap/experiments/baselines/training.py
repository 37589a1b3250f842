"""One loop for all baselines: AdamW over the captions, judged by CIDEr-D on dev after every epoch.

A run can be killed and goes on where its last checkpoint was written, to the same weights: the order of the captions
and the drop-out follow from the seed and the number of the step. A checkpoint of other data, another model or another
plan is refused. That holds for more epochs, too: the rate of learning falls to zero at the end of a plan, so that more
of them are another training from the first step on. Judging takes no part in the time of training.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from recap.errors import InputError
from recap.experiments.baselines.decoders import CAPTION_TOKENS, Baseline
from recap.files import atomic_write
from recap.metrics.cider import CiderD
from recap.metrics.corpus import MetricResult
from recap.types import Vectors

LAST, BEST = "last.pt", "best.pt"
"""Files of a folder of checkpoints: to go on from, and the weights that did best on dev."""

CHECKPOINT_STEPS = 200
"""Steps between two checkpoints within an epoch."""


@dataclass(frozen=True)
class Plan:
    """How to train."""

    epochs: int = 10
    batch: int = 40
    rate: float = 2e-5
    """The highest rate of learning: it rises from zero, and falls to zero at the end."""
    warmup: float = 0.05
    """The share of all steps in which it rises; above 1, their number."""
    patience: int = 3
    """Epochs without a better CIDEr-D on dev after which training stops."""
    seed: int = 0

    def rate_at(self, step: int, steps: int) -> float:
        """Return the rate of one of all ``steps``."""
        rising = max(1, round(self.warmup if self.warmup > 1 else self.warmup * steps))
        return self.rate * min((step + 1) / rising, (steps - step) / max(1, steps - rising), 1.0)


@dataclass(frozen=True)
class Examples:
    """Pictures with their captions and, for a baseline that reads one, a prompt each."""

    images: Vectors
    captions: Sequence[Sequence[str]]
    prompts: Sequence[str]

    def digest(self) -> str:
        """Return what tells these examples from others."""
        digest = hashlib.sha256(repr((self.images.shape, str(self.images.dtype))).encode())
        digest.update(np.ascontiguousarray(self.images).tobytes())
        digest.update(json.dumps([list(map(list, self.captions)), list(self.prompts)]).encode())
        return digest.hexdigest()


@dataclass(frozen=True)
class Epoch:
    """What an epoch came to."""

    number: int
    loss: float
    cider_d: float
    """On dev; 1 is what ``recap score`` calls 100."""
    seconds: float
    """Of training, from the first step on."""


class Trainer:
    """A baseline in training."""

    def __init__(
        self, model: Baseline, train: Examples, plan: Plan, *, clock: Callable[[], float] = time.process_time
    ) -> None:
        self.model, self.plan = model, plan
        self.steps = 0
        self.seconds = 0.0
        self.epochs: list[Epoch] = []
        self._train, self._clock, self._losses = train, clock, 0.0
        self._owners = np.repeat(np.arange(len(train.captions)), [len(texts) for texts in train.captions])
        self._texts = [text for texts in train.captions for text in texts]
        self._optimizer = torch.optim.AdamW(model.trainable.values(), lr=plan.rate)
        self._device = next(model.parameters()).device

    @property
    def steps_per_epoch(self) -> int:
        """How many steps see every caption once."""
        return math.ceil(len(self._texts) / self.plan.batch)

    def step(self) -> float:
        """Learn from one batch; return its loss."""
        started = self._clock()
        epoch, place = divmod(self.steps, self.steps_per_epoch)
        order = np.random.default_rng((self.plan.seed, epoch)).permutation(len(self._texts))
        rows = order[place * self.plan.batch : (place + 1) * self.plan.batch]
        torch.manual_seed(self.plan.seed * 1_000_003 + self.steps)
        self.model.train()
        owners = self._owners[rows]
        images = torch.from_numpy(self._train.images[owners]).to(self._device)
        loss = self.model.loss(images, [self._train.prompts[i] for i in owners], [self._texts[i] for i in rows])
        for group in self._optimizer.param_groups:
            group["lr"] = self.plan.rate_at(self.steps, self.plan.epochs * self.steps_per_epoch)
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.trainable.values(), 1.0)
        self._optimizer.step()
        value = float(loss.detach())
        self.steps += 1
        self._losses += value
        self.seconds += self._clock() - started
        return value

    def seconds_per_step(self, steps: int) -> float:
        """Return the mean time of some steps, after one that is not counted."""
        self.step()
        before = self.seconds
        for _ in range(steps):
            self.step()
        return (self.seconds - before) / steps

    def run(
        self, dev: Examples, folder: Path | None = None, *, report: Callable[[Epoch], None] | None = None
    ) -> list[Epoch]:
        """Train to the end of the plan, or of patience; leave the model with the weights that did best on dev.

        With a folder, checkpoints are written to it, and a run that was begun there goes on.
        """
        facts = self._facts(dev) if folder else {}
        best = self._resume(folder, facts) if folder else None
        while len(self.epochs) < self.plan.epochs and not self._is_over():
            while self.steps < (len(self.epochs) + 1) * self.steps_per_epoch:
                self.step()
                if folder and self.steps % CHECKPOINT_STEPS == 0:
                    self._save(folder, facts)
            epoch = self._judge(dev)
            if best is None or epoch.cider_d > max(past.cider_d for past in self.epochs):
                best = {name: weight.detach().clone() for name, weight in self.model.trainable.items()}
                if folder:
                    _write(folder / BEST, best)
            self.epochs.append(epoch)
            self._losses = 0.0
            if folder:
                self._save(folder, facts)
            if report:
                report(epoch)
        if best is not None:
            self._load(best)
        return self.epochs

    @property
    def best(self) -> Epoch:
        """The epoch with the best CIDEr-D on dev."""
        return max(self.epochs, key=lambda epoch: epoch.cider_d)

    def _is_over(self) -> bool:
        return bool(self.epochs) and len(self.epochs) - self.best.number >= self.plan.patience

    def _judge(self, dev: Examples) -> Epoch:
        loss = self._losses / self.steps_per_epoch
        return Epoch(len(self.epochs) + 1, loss, judge(self.model, dev).value, self.seconds)

    def _facts(self, dev: Examples) -> dict[str, Any]:
        """Return what decides what comes out, by the words of a message."""
        return {
            **asdict(self.plan),
            "language model": self.model.decoder.name,
            "weights": {name: list(weight.shape) for name, weight in self.model.named_parameters()},
            "trained weights": sorted(self.model.trainable),
            "training examples": self._train.digest(),
            "dev examples": dev.digest(),
        }

    def _save(self, folder: Path, facts: dict[str, Any]) -> None:
        state = {
            "facts": facts,
            "steps": self.steps,
            "seconds": self.seconds,
            "losses": self._losses,
            "epochs": [asdict(epoch) for epoch in self.epochs],
            "model": {name: weight.detach() for name, weight in self.model.trainable.items()},
            "optimizer": self._optimizer.state_dict(),
        }
        _write(folder / LAST, state)

    def _resume(self, folder: Path, facts: dict[str, Any]) -> dict[str, Tensor] | None:
        """Go on from a checkpoint where there is one; return the best weights so far."""
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / LAST).exists():
            return None
        state = torch.load(folder / LAST, map_location=self._device, weights_only=True)
        there = state["facts"]
        if differ := [name for name in sorted(there.keys() | facts.keys()) if there.get(name) != facts.get(name)]:
            raise InputError(
                f"{folder} holds checkpoints of a run with other {', '.join(differ)}: name another folder, or delete it"
            )
        self.steps, self.seconds, self._losses = state["steps"], state["seconds"], state["losses"]
        self.epochs = [Epoch(**epoch) for epoch in state["epochs"]]
        self._load(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        if not self.epochs:
            return None
        best: dict[str, Tensor] = torch.load(folder / BEST, map_location=self._device, weights_only=True)
        return best

    def _load(self, weights: dict[str, Tensor]) -> None:
        with torch.no_grad():
            for name, weight in self.model.trainable.items():
                weight.copy_(weights[name])


def judge(model: Baseline, examples: Examples) -> MetricResult:
    """Return the CIDEr-D of the captions that a model writes."""
    return CiderD(examples.captions).score(write_captions(model, examples.images, examples.prompts))


def write_captions(
    model: Baseline, images: Vectors, prompts: Sequence[str], *, limit: int = CAPTION_TOKENS
) -> list[str]:
    """Return a caption for each image, of at most ``limit`` tokens."""
    device = next(model.parameters()).device
    return model.write(torch.from_numpy(images).to(device), prompts, limit=limit)


def _write(path: Path, state: dict[str, Any]) -> None:
    with atomic_write(path) as file:
        torch.save(state, file)
