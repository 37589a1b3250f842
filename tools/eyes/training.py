"""Contrastive training: a picture and its caption must find each other among a batch.

``warm_up`` trains the heads and the text tower on the mean tokens of pictures, where a step is cheap; ``train`` goes on
with everything, from the maps. Captions of the same picture, and of pictures with the same name, are never negatives.
Weights are averaged along the way, and a checkpoint is kept at every report; a stopped run goes on.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from eyes.data import Pictures, Rows, Split, Texts, meaning_of
from eyes.model import Eyes

AVERAGE = 0.99
LOWEST, HIGHEST = np.log(10.0), np.log(100.0)


@dataclass(frozen=True)
class Rates:
    """How fast the parts learn."""

    stage: float = 2e-4
    layer: float = 2e-4
    heads: float = 1e-3


class Run:
    """A training that can be stopped: model, average, optimiser, clock."""

    def __init__(self, model: Eyes, average: Eyes, path: Path, rates: Rates) -> None:
        self.model, self.average, self.path = model, average, path
        self.rates = [rates.stage, rates.layer, rates.heads, rates.heads]
        groups = [model.image.stage, model.text.layer, model.image.pool, model.text.pool]
        parameters = [{"params": list(part.parameters())} for part in groups]
        parameters[-1]["params"].append(model.scale)
        self.optimiser = torch.optim.AdamW(parameters, lr=1e-3, betas=(0.9, 0.98), weight_decay=0.05)
        self.steps, self.seconds = 0, 0.0
        if path.exists():
            saved = torch.load(path, weights_only=True)
            model.load_state_dict(saved["model"])
            average.load_state_dict(saved["average"])
            self.optimiser.load_state_dict(saved["optimiser"])
            self.steps, self.seconds = saved["steps"], saved["seconds"]
            print(f"goes on at step {self.steps}, after {self.seconds / 60:.0f} minutes", flush=True)

    def save(self) -> None:
        """Write everything, all of it or nothing."""
        parts = {name: getattr(self, name).state_dict() for name in ("model", "average", "optimiser")}
        unfinished = self.path.with_suffix(".new")
        torch.save({**parts, "steps": self.steps, "seconds": self.seconds}, unfinished)
        unfinished.replace(self.path)

    def step(self, loss: Tensor, share: float) -> None:
        """Move the weights, and their average behind them; ``share`` of the rates is taken."""
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for group, rate in zip(self.optimiser.param_groups, self.rates, strict=True):
            group["lr"] = rate * share
        self.optimiser.step()
        self.steps += 1
        with torch.no_grad():
            self.model.scale.clamp_(LOWEST, HIGHEST)
            weight = min(AVERAGE, self.steps / (self.steps + 10))
            for ours, theirs in zip(self.average.parameters(), self.model.parameters(), strict=True):
                ours.lerp_(theirs, 1 - weight)


def contrast(images: Tensor, texts: Tensor, scale: Tensor, meanings: list[str]) -> Tensor:
    """Return the symmetric InfoNCE loss; pairs that mean the same are left out of each other's negatives."""
    logits = scale.exp() * images @ texts.T
    numbers: dict[str, int] = {}
    places = torch.tensor([numbers.setdefault(meaning, len(numbers)) for meaning in meanings])
    same = (places[:, None] == places[None, :]) & ~torch.eye(len(meanings), dtype=torch.bool)
    logits = logits.masked_fill(same, -1e4)
    target = torch.arange(len(meanings))
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2


def batches(rows: Rows, size: int, rng: np.random.Generator) -> Iterator[Rows]:
    """Yield shuffled batches without end."""
    while True:
        order = rng.permutation(rows)
        for start in range(0, len(order) - size + 1, size):
            yield order[start : start + size]


def captions_of(split: Split, rows: Rows, texts: Texts, rng: np.random.Generator) -> list[int]:
    """Return the number of one caption of each picture, drawn."""
    numbers = []
    for row in rows.tolist():
        known = [number for text in split.records[row].captions if texts.done[number := texts.number[text]]]
        numbers.append(known[rng.integers(len(known))])
    return numbers


def embed_texts(model: Eyes, texts: Texts, numbers: list[int], chunk: int = 128) -> Tensor:
    """Return the vectors of sentences; those of like length go together, so that little is padding."""
    lengths = texts.lengths[numbers]
    order = np.argsort(lengths, kind="stable")
    parts = [order[start : start + chunk] for start in range(0, len(order), chunk)]
    vectors = torch.cat([model.text(*texts.batch([numbers[place] for place in part])) for part in parts])
    return vectors[torch.from_numpy(np.argsort(order))]


def meanings(split: Split, rows: Rows) -> list[str]:
    """Return what each picture shows, as far as its set tells."""
    return [meaning_of(split.records[row]) for row in rows.tolist()]


def schedule(done: float, steps: int, warm: int = 20) -> float:
    """Return the share of the rates after a part ``done`` of the time."""
    return min(1.0, (steps + 1) / warm) * max(0.01, 0.5 * (1 + math.cos(math.pi * min(done, 1.0))))


@torch.no_grad()
def means(model: Eyes, split: Split, pictures: Pictures, folder: Path) -> dict[int, Tensor]:
    """Return the mean token of each picture to learn from, kept in a file of the folder."""
    path = folder / "means.pt"
    known: dict[int, Tensor] = torch.load(path, weights_only=True) if path.exists() else {}
    missing = np.array([row for row in split.train.tolist() if row not in known], np.int64)
    for start in range(0, len(missing), 256):
        rows = missing[start : start + 256]
        known |= dict(zip(rows.tolist(), model.image.stage(pictures.maps(rows)).mean(1), strict=True))
    torch.save(known, path)
    return known


def warm_up(run: Run, split: Split, texts: Texts, means: dict[int, Tensor], minutes: float, size: int = 1024) -> None:
    """Train heads and text tower on the mean tokens of the untrained stage."""
    rng = np.random.default_rng(run.steps)
    rows = np.array([row for row in split.train.tolist() if row in means], np.int64)
    model = run.model
    model.train()
    for chosen in batches(rows, size, rng):
        started = time.monotonic()
        pictures = torch.stack([means[row] for row in chosen.tolist()])
        vectors = F.normalize(model.image.pool.of_mean(pictures), dim=-1)
        said = embed_texts(model, texts, captions_of(split, chosen, texts, rng))
        loss = contrast(vectors, said, model.scale, meanings(split, chosen))
        run.step(loss, schedule(run.seconds / (60 * minutes), run.steps))
        run.seconds += time.monotonic() - started
        if run.steps % 10 == 0:
            print(f"step {run.steps}, {run.seconds / 60:.1f} min, loss {loss.item():.3f}", flush=True)
        if run.seconds >= 60 * minutes:
            break
    run.save()


def train(
    run: Run,
    split: Split,
    texts: Texts,
    pictures: Pictures,
    minutes: float,
    *,
    size: int = 1024,
    bfloat16: bool = False,
) -> None:
    """Train both towers from the maps; half of the pictures are mirrored.

    ``bfloat16`` takes half the time where the processor computes in it.
    """
    rng = np.random.default_rng(run.steps + 1)
    model = run.model
    model.train()
    started_report = time.monotonic()
    losses: list[float] = []
    for chosen in batches(split.train, size, rng):
        started = time.monotonic()
        maps = pictures.maps(chosen)
        mirrored = torch.from_numpy(rng.random(len(chosen)) < 0.5)
        maps[mirrored] = maps[mirrored].flip(-1)
        # the loss itself needs all its digits
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            seen = torch.cat([model.image(part) for part in torch.split(maps, 256)])
            said = embed_texts(model, texts, captions_of(split, chosen, texts, rng))
        loss = contrast(seen.float(), said.float(), model.scale, meanings(split, chosen))
        run.step(loss, schedule(run.seconds / (60 * minutes), run.steps))
        losses.append(loss.item())
        run.seconds += time.monotonic() - started
        if run.steps % 5 == 0:
            print(f"step {run.steps}, {run.seconds / 60:.1f} min, loss {np.mean(losses[-5:]):.3f}", flush=True)
        if time.monotonic() - started_report > 900 or run.seconds >= 60 * minutes:
            run.save()
            report(run, split, texts, pictures)
            started_report = time.monotonic()
            model.train()
        if run.seconds >= 60 * minutes:
            break


def recall(images: Tensor, texts: Tensor, owners: Tensor) -> dict[str, list[float]]:
    """Return R@1, 5, 10 in both directions; ``owners`` says whose each text is."""
    similarity = images @ texts.T
    found = owners[similarity.topk(10).indices] == torch.arange(len(images))[:, None]
    back = similarity.T.topk(10).indices == owners[:, None]
    return {
        name: [round(100 * hit[:, :k].any(1).float().mean().item(), 1) for k in (1, 5, 10)]
        for name, hit in (("i2t", found), ("t2i", back))
    }


@torch.no_grad()
def embed_pictures(model: Eyes, pictures: Pictures, rows: Rows) -> Tensor:
    """Return the vectors of pictures."""
    return torch.cat([model.image(pictures.maps(rows[start : start + 256])) for start in range(0, len(rows), 256)])


@torch.no_grad()
def report(run: Run, split: Split, texts: Texts, pictures: Pictures, count: int = 1000) -> None:
    """Print and keep what the averaged weights reach on held-out pictures."""
    run.average.eval()
    line: dict[str, object] = {"step": run.steps, "minutes": round(run.seconds / 60, 1)}
    for name, rows in {**split.dev, "test": split.test}.items():
        rows = rows[:count]
        captions = [split.records[row].captions for row in rows.tolist()]
        numbers = [texts.number[text] for group in captions for text in group]
        owners = torch.tensor([place for place, group in enumerate(captions) for _ in group])
        vectors = embed_pictures(run.average, pictures, rows)
        line[name] = recall(vectors, embed_texts(run.average, texts, numbers), owners)
    with run.path.with_suffix(".jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    print(line, flush=True)
