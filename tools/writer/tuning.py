"""Self-critical training: sentences are drawn, and those better than their siblings become likelier.

Better is CIDEr-D, less what is invented (things that none of the people who described the picture names) and what is
said again. The end of a sentence counts as a word of it, so that sentences that break off ("a man with a") earn less.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from recap.language.prompt import BEGIN, PAD
from recap.language.words import words
from recap.language.writer import LITTLE_WORDS
from recap.metrics import CiderD
from recap.metrics.spice import invented
from writer.batches import Batch, Corpus, Examples, Noise, Source, collate
from writer.decode import as_text, generate
from writer.model import Writer
from writer.training import Run, dev_sets, likelihood_loss, remember, report

BATCH = 40
SAMPLES = 5
OFTEN = {"coco": 1.0, "conceptual": 0.5, "travels": 0.3, "described": 0.8, "flickr8k": 0.5, "flickr8k-from-coco": 0.5}
"""How often each picture of a source comes in one pass; a name earns no CIDEr-D, so pictures with one do not come."""
RATE = 1e-4
WARM_UP = 100
LIKELIHOOD, EVERY = 0.8, 2
"""The weight of ordinary training, which keeps sentences natural, and how often it takes part."""
LONGEST_DRAWN = 17
REPORT_SECONDS = 300
END_WORD = "endofsentence"
LIE = 0.3
"""So much CIDEr-D an invented thing costs."""
REPEAT = 0.25
"""So much a word costs that is said again: people hardly ever do, and CIDEr-D does not mind."""
WITNESSES = 3
"""With fewer captions of people nobody can say what is invented."""
GENTLE = Noise(
    fewer=0.12,
    wrong=0.04,
    no_vector=0.04,
    no_details=0.08,
    no_captions=0.03,
    hidden=0.1,
    other_map=0.06,
    no_patches=0.35,
)


def tune(
    folder: Path, minutes: float, start: str = "likelihood", name: str = "tuned", *, bfloat16: bool = False
) -> None:
    """Go on from the averaged weights of ``start`` for so many minutes, counting those of earlier runs."""
    corpus = Corpus(folder)
    run = _open(folder, start, name)
    rng = np.random.default_rng(run.steps + 1)
    torch.manual_seed(run.steps + 1)
    sources = [(Source.load(folder / f"{source}.npz"), often) for source, often in OFTEN.items()]
    judge = Judge(corpus, [source for source, _ in sources])
    batches = _batches(sources, judge.first, Examples(corpus, GENTLE, rng), run.model.shape.front)
    dev = dev_sets(folder, corpus, run.shape, 300)
    budget = 60 * minutes
    rewards: list[float] = []
    written = time.monotonic()
    run.model.eval()  # no dropout: what is drawn and what is learned from it must be one model
    while run.seconds < budget:
        started = time.monotonic()
        rate = RATE * min(1.0, (run.steps + 1) / WARM_UP, max(0.05, (1 - run.seconds / budget) / 0.6))
        batch, images = next(batches)
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            memory = remember(run.model, batch)
        loss, reward = critical_loss(run.model, batch, memory, images, corpus, judge, bfloat16)
        if run.steps % EVERY == 0:
            with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
                loss = loss + LIKELIHOOD * likelihood_loss(run.model, batch, memory)
        run.step(loss, rate)
        rewards.append(reward)
        run.seconds += time.monotonic() - started
        if time.monotonic() - written > REPORT_SECONDS or run.seconds >= budget:
            report(run, folder / f"{name}.jsonl", corpus, dev, reward=float(np.mean(rewards)))
            rewards, written = [], time.monotonic()


def critical_loss(
    model: Writer,
    batch: Batch,
    memory: torch.Tensor,
    images: list[int],
    corpus: Corpus,
    judge: Judge,
    bfloat16: bool = False,
) -> tuple[torch.Tensor, float]:
    """Return the loss whose gradient favours sentences better than their siblings, and the mean reward."""
    drawn = generate(model, batch, memory.detach().float(), SAMPLES, 1.0, LONGEST_DRAWN)
    texts = [
        as_text(sentence, slots, corpus)
        for sentences, slots in zip(drawn.tolist(), batch.slots, strict=True)
        for sentence in sentences
    ]
    values = judge.rewards(texts, np.repeat(images, SAMPLES).tolist())
    rewards = torch.from_numpy(values.astype(np.float32)).view(len(images), SAMPLES)
    siblings = (rewards.sum(1, keepdim=True) - rewards) / (SAMPLES - 1)
    read = torch.cat([torch.full_like(drawn[..., :1], BEGIN), drawn[..., :-1]], -1)
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        state = model.decode(read, memory, batch.mask).flatten(1, 2)
        logp = model.likelihood(state, drawn.flatten(1), memory, batch.tokens, batch.mask).view_as(drawn)
    counted = drawn != PAD
    critical = -((rewards - siblings)[..., None] * logp * counted).sum() / counted.sum()
    return critical, float(rewards.mean())


def _open(folder: Path, start: str, name: str) -> Run:
    """Return the run under way, or a new one that begins with the averaged weights of ``start``."""
    path = folder / f"{name}.pt"
    shape = Run.shape_of(folder / f"{start}.pt")
    if path.exists():
        return Run.open(path, shape)
    run = Run(path, shape)
    weights = torch.load(folder / f"{start}.pt", weights_only=True)["average"]
    run.model.load_state_dict(weights)
    run.average.load_state_dict(weights)
    return run


class Judge:
    """Knows what people said about all pictures of some sources."""

    def __init__(self, corpus: Corpus, sources: list[Source]) -> None:
        self.first: list[int] = []
        """The number of each source's first picture."""
        self._said: list[list[str]] = []
        for source in sources:
            self.first.append(len(self._said))
            self._said += [[corpus.texts[text] for text in own if text >= 0] for own in source.own.tolist()]
        self._cider = CiderD([[f"{text} {END_WORD}" for text in texts] for texts in self._said])

    def rewards(self, texts: list[str], images: list[int]) -> npt.NDArray[np.float64]:
        """Return what each text is worth as a caption of its picture."""
        values = np.array(self._cider.score([f"{text} {END_WORD}" for text in texts], images).per_image)
        lies = [
            len(invented(text, self._said[image])) if len(self._said[image]) >= WITNESSES else 0
            for text, image in zip(texts, images, strict=True)
        ]
        return values - LIE * np.array(lies) - REPEAT * np.array(list(map(repeats, texts)))


def repeats(text: str) -> int:
    """Return how many words of a sentence say again what was said, one thing or several of it alike."""
    said = [word.removesuffix("s") for word in words(text) if word not in LITTLE_WORDS]
    return len(said) - len(set(said))


def _batches(
    sources: list[tuple[Source, float]], first: list[int], examples: Examples, front: int
) -> Iterator[tuple[Batch, list[int]]]:
    """Yield batches without end, with the numbers of their pictures."""
    pictures = [(place, row) for place, (source, _) in enumerate(sources) for row in range(len(source.own))]
    often = np.array([sources[place][1] for place, _ in pictures])
    while True:
        times = often.astype(int) + (examples.rng.random(len(pictures)) < often % 1)
        order = examples.rng.permutation(np.repeat(np.arange(len(pictures)), times))
        for start in range(0, len(order) - BATCH + 1, BATCH):
            chosen = [pictures[index] for index in order[start : start + BATCH]]
            batch = collate([examples.example(sources[place][0], row) for place, row in chosen], front)
            yield batch, [first[place] + row for place, row in chosen]
