"""Training by likelihood: resumable, with a checkpoint every few minutes and a curve of dev figures."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch

from recap.language.prompt import PAD
from recap.metrics import cider_d
from writer.batches import Batch, Corpus, Examples, Noise, Source, collate, shuffled
from writer.decode import as_text, generate
from writer.earlier import begin_with
from writer.model import Shape, Writer

SOURCES = {
    "coco": 1.0,
    "conceptual": 1.0,
    "travels": 1.0,
    "described": 3.0,
    "named": 0.3,
    "flickr8k": 1.0,
    "flickr8k-from-coco": 0.5,
}
"""How often each picture of a source comes in one pass."""
DEV = ("coco", "conceptual", "described", "flickr8k", "flickr8k-from-coco")
LARGE = " large"
"""Behind the name of a dev set that DINOv2 looks at, too."""

DevSet: TypeAlias = list[tuple[Batch, list[list[str]]]]
"""Batches of pictures with their captions."""

BATCH = 48
PEAK_RATE, GENTLE_RATE = 1.5e-3, 4e-4
"""How fast it learns from nothing, and from weights that know something."""
WARM_UP = 400
EVERY_SECONDS = 300
AVERAGE = 0.998
NEW_FASTER = 4
"""So much faster than the others learn the weights that read patches, which began as zeros."""


class Run:
    """A model with its optimiser and the average of its recent weights, kept in a file."""

    def __init__(self, path: Path, shape: Shape, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.path, self.shape = path, shape
        self.model, self.average = Writer(shape), Writer(shape)
        self.average.load_state_dict(self.model.state_dict())
        new = list(self.model.patch.parameters())
        known = [p for name, p in self.model.named_parameters() if not name.startswith("patch.")]
        decay, free = [p for p in known if p.ndim > 1], [p for p in known if p.ndim <= 1]
        groups = [{"params": decay, "weight_decay": 0.02}, {"params": free, "weight_decay": 0.0}]
        groups.append({"params": new, "weight_decay": 0.02, "faster": NEW_FASTER})
        self.optimiser = torch.optim.AdamW(groups, lr=PEAK_RATE, betas=(0.9, 0.98), fused=True)
        self.steps, self.seconds = 0, 0.0

    @classmethod
    def open(cls, path: Path, shape: Shape) -> Run:
        """Return the run kept in a file, or a new one."""
        run = cls(path, shape)
        if path.exists():
            saved = torch.load(path, weights_only=True)
            run.model.load_state_dict(saved["model"])
            run.average.load_state_dict(saved["average"])
            run.optimiser.load_state_dict(saved["optimiser"])
            run.steps, run.seconds = saved["steps"], saved["seconds"]
            print(f"goes on at step {run.steps:,}, after {run.seconds / 60:.0f} minutes")
        return run

    @staticmethod
    def shape_of(path: Path) -> Shape:
        """Return the shape of the model kept in a file."""
        return Shape(**torch.load(path, weights_only=True)["shape"])

    def save(self) -> None:
        """Write everything, all of it or nothing."""
        parts = {name: getattr(self, name).state_dict() for name in ("model", "average", "optimiser")}
        unfinished = self.path.with_suffix(".new")
        torch.save({**parts, "shape": self.shape.as_dict(), "steps": self.steps, "seconds": self.seconds}, unfinished)
        unfinished.replace(self.path)

    def step(self, loss: torch.Tensor, rate: float) -> None:
        """Move the weights, and their average behind them."""
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for group in self.optimiser.param_groups:
            group["lr"] = rate * group.get("faster", 1)
        self.optimiser.step()
        self.steps += 1
        weight = min(AVERAGE, self.steps / (self.steps + 10))
        with torch.no_grad():
            for ours, theirs in zip(self.average.parameters(), self.model.parameters(), strict=True):
                ours.lerp_(theirs, 1 - weight)


def train(
    folder: Path,
    minutes: float,
    name: str = "likelihood",
    *,
    width: int = 256,
    only: str = "",
    start: Path | None = None,
    bfloat16: bool = False,
) -> None:
    """Train for so many minutes in all, counting those of earlier runs; on all sources, or ``only`` on some.

    A new training begins with the weights of the exported writer in ``start``, if one is given.
    """
    corpus = Corpus(folder)
    run = Run.open(folder / f"{name}.pt", Shape(corpus.vocabulary, width=width))
    if start is not None and not run.steps:
        for model in (run.model, run.average):
            begin_with(model, start, corpus.words[: corpus.vocabulary])
    size = sum(p.numel() for p in run.model.parameters())
    print(f"{size / 1e6:.2f} million parameters", flush=True)
    rng = np.random.default_rng(run.steps)
    chosen = {source: often for source, often in SOURCES.items() if not only or source in only.split(",")}
    sources = [(Source.load(folder / f"{source}.npz"), often) for source, often in chosen.items()]
    batches = ahead(shuffled(sources, BATCH, Examples(corpus, Noise(), rng), run.shape.front))
    dev = dev_sets(folder, corpus, run.shape, 300)
    budget, peak = 60 * minutes, PEAK_RATE if start is None else GENTLE_RATE
    losses: list[float] = []
    written = time.monotonic()
    run.model.train()
    while run.seconds < budget:
        started = time.monotonic()
        rate = peak * min(1.0, (run.steps + 1) / WARM_UP, max(0.02, (1 - run.seconds / budget) / 0.7))
        batch = next(batches)
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            loss = likelihood_loss(run.model, batch, remember(run.model, batch))
        run.step(loss, rate)
        losses.append(loss.item())
        run.seconds += time.monotonic() - started
        if time.monotonic() - written > EVERY_SECONDS or run.seconds >= budget:
            report(run, folder / f"{name}.jsonl", corpus, dev, loss=float(np.mean(losses)))
            losses, written = [], time.monotonic()


def remember(model: Writer, batch: Batch) -> torch.Tensor:
    """Return the memory of each picture of a batch."""
    picture = (batch.vector, batch.known, batch.details, batch.seen, batch.patches, batch.closer)
    return model.remember(batch.tokens, batch.shares, batch.places, batch.ranks, *picture, batch.mask)


def likelihood_loss(model: Writer, batch: Batch, memory: torch.Tensor) -> torch.Tensor:
    """Return the mean negative log-probability of a word."""
    state = model.decode(batch.sentences, memory, batch.mask).flatten(1, 2)
    targets = batch.targets.flatten(1)
    logp = model.likelihood(state, targets, memory, batch.tokens, batch.mask)
    counted = targets != PAD
    loss: torch.Tensor = -(logp * counted).sum() / counted.sum()
    return loss


def report(run: Run, log: Path, corpus: Corpus, dev: dict[str, DevSet], **more: float) -> None:
    """Write a checkpoint and a line of the curve: CIDEr-D of the likeliest words on dev."""
    run.save()
    figures = {name: round(100 * greedy_cider(run.average, corpus, batches), 1) for name, batches in dev.items()}
    line = {"step": run.steps, "minutes": round(run.seconds / 60, 1), **more, **figures}
    with log.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    print(line, flush=True)


def dev_sets(folder: Path, corpus: Corpus, shape: Shape, count: int) -> dict[str, DevSet]:
    """Return the first pictures of each dev source as batches, with their captions."""
    sets: dict[str, DevSet] = {}
    for name in (*DEV, *(f"{name}{LARGE}" for name in DEV)):
        plain = Examples(corpus, None, np.random.default_rng(0), large=name.endswith(LARGE))
        source = Source.load(folder / f"dev-{name.removesuffix(LARGE)}.npz")
        sets[name] = []
        for start in range(0, min(count, len(source.own)), 50):
            rows = range(start, min(start + 50, len(source.own)))
            batch = collate([plain.example(source, row) for row in rows], shape.front)
            texts = [[corpus.texts[text] for text in source.own[row] if text >= 0] for row in rows]
            sets[name].append((batch, texts))
    return sets


def greedy_cider(model: Writer, corpus: Corpus, batches: DevSet) -> float:
    """Return CIDEr-D of what the model writes when it always takes the likeliest word."""
    model.eval()
    texts, references = [], []
    for batch, captions in batches:
        with torch.no_grad():
            sentences = generate(model, batch, remember(model, batch), 1, 0.0)[:, 0].tolist()
        texts += [as_text(sentence, slots, corpus) for sentence, slots in zip(sentences, batch.slots, strict=True)]
        references += captions
    return cider_d(texts, references).value


def ahead(batches: Iterator[Batch], count: int = 4) -> Iterator[Batch]:
    """Yield batches made by a thread that is a few ahead."""
    ready: queue.Queue[Batch] = queue.Queue(count)

    def fill() -> None:
        for batch in batches:
            ready.put(batch)

    threading.Thread(target=fill, daemon=True).start()
    while True:
        yield ready.get()
