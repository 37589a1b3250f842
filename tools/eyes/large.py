"""The larger eyes: what the eyes and DINOv2 see of a picture, together, in the space of the eyes.

The towers of the eyes stay as they are; only what joins the two is trained, so that texts have the same vectors in both
models, and a step costs little. Patches of DINOv2 lie in shards like the maps of ``maps``.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from onnx_files import export_module
from torch import Tensor, nn
from torch.nn import functional as F

from eyes.data import Pictures, Rows, Split, Texts
from eyes.export import DETAIL_WIDTH, FOLDER, directions_of
from eyes.maps import RESIZE, SHARD, contents, repaired
from eyes.model import GRID, SPACE, Pool
from eyes.sources import DESCRIBED, Mirror, Record
from eyes.training import batches, contrast, meanings, recall, schedule
from recap.encoders.preprocess import Preprocess

PLACES, PATCH_WIDTH, WIDTH = GRID * GRID, 384, 384
AVERAGE = 0.98
DROPOUT = 0.25
LOOKED_AT = 30
"""At so many places of a picture training looks at a time: the fewer, the less is learned by heart."""
EYES = 0.4
"""The weight of the vector of the eyes in the end, best on held-out pictures of COCO and of the other sets."""
RATE, GENTLE_RATE = 1e-3, 4e-4
"""How fast it learns from nothing, and from weights that know something."""
OFTEN = 3
"""So many times in each pass come the pictures that we described: of their kind there are few."""
FORGET = 0.3
"""Share of a batch whose vectors by the eyes alone are hidden: of pictures the eyes learned from, they are too good."""


class Large(nn.Module):
    """From a row of the eyes (vector and details) and the patches of DINOv2 to a row with a better vector.

    Its details are those of the eyes and, behind those of each place, its patch in the main directions of patches.
    """

    mean: Tensor
    directions: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(PATCH_WIDTH))
        self.register_buffer("directions", torch.zeros(PATCH_WIDTH, DETAIL_WIDTH))
        self.norm = nn.LayerNorm(PATCH_WIDTH)
        self.join = nn.Linear(PATCH_WIDTH + DETAIL_WIDTH, WIDTH)
        self.place = nn.Parameter(torch.zeros(PLACES, WIDTH))
        self.pool = Pool(WIDTH, hidden=512, dropout=DROPOUT)
        self.first = nn.Parameter(torch.tensor(1.0))
        self.scale = nn.Parameter(torch.tensor(30.0).log())
        for weights in (*self.pool.straight.parameters(), *self.pool.bend[3].parameters()):
            nn.init.zeros_(weights)  # training begins with the vector of the eyes

    def forward(self, rows: Tensor, patches: Tensor) -> Tensor:
        """Return rows: unit vectors, and the details of each place."""
        return torch.cat([self.mixed(rows, patches), self.details(rows, patches)], -1)

    def details(self, rows: Tensor, patches: Tensor) -> Tensor:
        """Return what the eyes and DINOv2 say of each place, side by side, one place after the other."""
        seen = rows[:, SPACE:].unflatten(-1, (PLACES, DETAIL_WIDTH))  # type: ignore[no-untyped-call]
        return torch.cat([seen, (patches.flatten(1, 2) - self.mean) @ self.directions], -1).flatten(1)

    def mixed(self, rows: Tensor, patches: Tensor) -> Tensor:
        """Return unit vectors between those of the eyes and ``vectors``: each makes mistakes the other does not."""
        return F.normalize(EYES * rows[:, :SPACE] + (1 - EYES) * self.vectors(rows, patches), dim=-1)

    def vectors(
        self, rows: Tensor, patches: Tensor, known: Tensor | None = None, places: Tensor | None = None
    ) -> Tensor:
        """Return unit vectors of ``places`` or all; where ``known`` is 0, the vector of the eyes is hidden."""
        details = rows[:, SPACE:].unflatten(-1, (PLACES, DETAIL_WIDTH))  # type: ignore[no-untyped-call]
        tokens = self.join(torch.cat([self.norm(patches.flatten(1, 2)), details], -1)) + self.place
        if places is not None:
            tokens = tokens[:, places]
        first = self.first * rows[:, :SPACE]
        if known is not None:
            first = first * known[:, None]
        return F.normalize(first + self.pool.of_mean(tokens.mean(1)) + self.pool.of_tokens(tokens), dim=-1)


class Seen:
    """Rows of the eyes and patches of DINOv2, by the numbers of records."""

    def __init__(self, work: Path) -> None:
        self.work, self.folder = work, work / "patches"
        self.vectors = np.load(work / "vectors.npy", mmap_mode="r")
        self.details = np.load(work / "details.npy", mmap_mode="r")
        self._patches = Pictures(self.folder)

    def there(self) -> Rows:
        """Return the numbers of the records that have patches."""
        pictures = Pictures(self.work / "maps").there()
        shards = [int(path.stem) for path in self.folder.glob("?????.npy")]
        return pictures[np.isin(pictures // SHARD, shards)]

    def rows(self, numbers: Rows) -> tuple[Tensor, Tensor]:
        """Return the rows of the eyes and the patches."""
        rows = np.concatenate([self.vectors[numbers], self.details[numbers]], axis=1)
        return torch.from_numpy(rows).float(), self._patches.maps(numbers).unflatten(1, (GRID, GRID))  # type: ignore[no-untyped-call]


def extract(records: Sequence[Record], mirror: Mirror, work: Path, network: Path, part: int, parts: int) -> None:
    """Compute the patches of the pictures that have a map, for one process out of several."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(network), options, providers=["CPUExecutionProvider"])
    preprocess, folder = Preprocess(resize=RESIZE), work / "patches"
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(part, -(-len(records) // SHARD), parts):
        path = folder / f"{number:05}.npy"
        if path.exists():
            continue
        block = records[number * SHARD : (number + 1) * SHARD]
        good = np.flatnonzero(np.load(work / "maps" / f"{number:05}.good.npy")).tolist()
        patches = np.zeros((len(block), PLACES, PATCH_WIDTH), np.float16)
        chosen = [block[row] for row in good]
        for row, record, content in zip(good, chosen, contents(chosen, mirror), strict=True):
            pixels = preprocess(repaired(content, record))
            patches[row] = session.run(None, {"input": pixels[None]})[0].reshape(PLACES, PATCH_WIDTH)
        unfinished = path.with_suffix(f".{os.getpid()}.tmp")
        with unfinished.open("wb") as file:
            np.save(file, patches)
        unfinished.replace(path)
        print(f"{path.name}: {len(good)} pictures", flush=True)


def train(
    work: Path,
    split: Split,
    texts: Texts,
    minutes: float,
    *,
    start: dict[str, Tensor] | None = None,
    size: int = 1024,
    bfloat16: bool = False,
) -> None:
    """Train what joins the two, from the weights of ``start`` if given, and keep their average in ``large.pt``."""
    torch.manual_seed(14)
    model, average, seen = Large(), Large(), Seen(work)
    if start:
        model.load_state_dict(start)
    average.load_state_dict(model.state_dict())
    peak = GENTLE_RATE if start else RATE
    optimiser = torch.optim.AdamW(model.parameters(), lr=peak, betas=(0.9, 0.98), weight_decay=0.1)
    said = np.load(work / "text_vectors.npy", mmap_mode="r")
    captions = known_captions(work, split, split.train, texts)
    rng = np.random.default_rng(1)
    started = time.monotonic()
    times = {row: OFTEN if split.records[row].source == DESCRIBED else 1 for row in captions if captions[row]}
    rows = np.repeat(np.array(list(times), np.int64), list(times.values()))
    for step, chosen in enumerate(batches(rows, size, rng), 1):
        numbers = [captions[row][rng.integers(len(captions[row]))] for row in chosen.tolist()]
        target = F.normalize(torch.from_numpy(said[numbers]).float(), dim=-1)
        with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
            vectors = torch.cat([_drawn(model, seen, chosen[i : i + 256], rng) for i in range(0, len(chosen), 256)])
        loss = contrast(vectors.float(), target, model.scale, meanings(split, chosen))
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        done = (time.monotonic() - started) / (60 * minutes)
        optimiser.param_groups[0]["lr"] = peak * schedule(done, step)
        optimiser.step()
        with torch.no_grad():
            model.scale.clamp_(math.log(10.0), math.log(100.0))
            for ours, theirs in zip(average.parameters(), model.parameters(), strict=True):
                ours.lerp_(theirs, 1 - min(AVERAGE, step / (step + 10)))
        if step % 20 == 0:
            print(f"step {step}, {(time.monotonic() - started) / 60:.1f} min, loss {loss.item():.3f}", flush=True)
        if done >= 1:
            break
    if not start:  # the writer knows the directions of what it began with
        some = np.sort(rng.choice(split.train, min(2000, len(split.train)), replace=False))
        average.mean, average.directions = directions_of(seen.rows(some)[1].flatten(0, 2))
    torch.save(average.state_dict(), work / "large.pt")
    report(average.eval(), work, split, texts)


def _drawn(model: Large, seen: Seen, numbers: Rows, rng: np.random.Generator) -> Tensor:
    """Return vectors of pictures, half of them mirrored; of some, the vector of the eyes is hidden."""
    rows, patches = seen.rows(numbers)
    mirrored = torch.from_numpy(rng.random(len(rows)) < 0.5)
    patches[mirrored] = patches[mirrored].flip(2)
    details = rows[:, SPACE:].unflatten(-1, (GRID, GRID, DETAIL_WIDTH))  # type: ignore[no-untyped-call]
    details[mirrored] = details[mirrored].flip(2)
    known = torch.from_numpy(rng.random(len(rows)) >= FORGET).float()
    return model.vectors(rows, patches, known, torch.from_numpy(rng.permutation(PLACES)[:LOOKED_AT]))


def known_captions(work: Path, split: Split, rows: Rows, texts: Texts) -> dict[int, list[int]]:
    """Return for each picture the numbers of those of its captions that have a vector."""
    done = np.load(work / "text_vectors_flag.npy")
    return {
        row: [number for text in split.records[row].captions if done[number := texts.number[text]]]
        for row in rows.tolist()
    }


@torch.no_grad()
def report(model: Large, work: Path, split: Split, texts: Texts, count: int = 1000) -> None:
    """Print what the eyes and the larger eyes reach on held-out pictures, with two captions of each."""
    said, seen = np.load(work / "text_vectors.npy", mmap_mode="r"), Seen(work)
    for name, rows in {**split.dev, "test": split.test}.items():
        rows = rows[:count]
        if not len(rows):
            continue
        groups = [numbers[:2] for numbers in known_captions(work, split, rows, texts).values()]
        owners = torch.tensor([place for place, group in enumerate(groups) for _ in group])
        target = torch.from_numpy(said[[number for group in groups for number in group]]).float()
        before = torch.from_numpy(np.asarray(seen.vectors[rows], np.float32))
        after = torch.cat([model.mixed(*seen.rows(rows[i : i + 256])) for i in range(0, len(rows), 256)])
        print(json.dumps({name: len(rows), **{f"eyes {k}": v for k, v in recall(before, target, owners).items()}}))
        print(json.dumps({name: len(rows), **{f"large {k}": v for k, v in recall(after, target, owners).items()}}))


@torch.no_grad()
def write_vectors(work: Path) -> None:
    """Write ``large_vectors.npy``: those of the larger eyes where there are patches, of the eyes elsewhere."""
    model, seen = load(work), Seen(work)
    vectors, there = np.array(seen.vectors), seen.there()
    for start in range(0, len(there), 512):
        block = there[start : start + 512]
        vectors[block] = model.mixed(*seen.rows(block)).numpy()
    np.save(work / "large_vectors.npy", vectors)
    print(f"{len(there):,} pictures", flush=True)


def load(work: Path) -> Large:
    """Return the trained weights."""
    model = Large()
    model.load_state_dict(torch.load(work / "large.pt", weights_only=True))
    return model.eval()


def export(work: Path, folder: Path = FOLDER) -> None:
    """Write ``large.onnx``."""
    free = {0: "pictures"}
    example = (torch.zeros(2, SPACE + PLACES * DETAIL_WIDTH), torch.zeros(2, GRID, GRID, PATCH_WIDTH))
    path = folder / "large.onnx"
    export_module(load(work), example, path, {"rows": free, "patches": free}, {"large_rows": free}, half=True)
    print(f"{path}: {path.stat().st_size:,} bytes")
