"""Train the eyes, the small vision-language model inside the package.

    python tools/train_eyes.py pictures --work DIR --mirror DIR --part 0 --parts 2    # an hour on two cores
    python tools/train_eyes.py texts --work DIR
    python tools/train_eyes.py warm-up --work DIR --minutes 12    # heads and text tower, on mean tokens
    python tools/train_eyes.py train --work DIR --minutes 40      # everything; --start DIR begins with exported eyes
    python tools/train_eyes.py vectors --work DIR                 # of all pictures and sentences, for the next tools
    python tools/train_eyes.py export --work DIR                  # into the package
    python tools/train_eyes.py patches --work DIR --mirror DIR    # for eyes-large: three hours on two cores
    python tools/train_eyes.py large --work DIR --minutes 20      # what joins the eyes and DINOv2
    python tools/train_eyes.py export-large --work DIR            # its vectors, and into the package

``--mirror`` holds git directories of public repositories of pictures (``OWNER+NAME/repo``; which ones is in
``eyes/sources.py``). Every step goes on where it was stopped. A memory allocator that keeps its pages (such as tcmalloc
by ``LD_PRELOAD``) halves the time of training.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from eyes import data, export, large, maps, sources, texts, training, vectors
from eyes.earlier import begin_with, exported_large
from eyes.model import Eyes
from eyes.training import Rates, Run

from recap.assets import fetch
from recap.encoders.builtin import MINILM_LAYERS, TINYVIT_CUT, dinov2_part, first_part, minilm_part
from recap.packs.builtin import coco_captions

STEPS = ("pictures", "texts", "warm-up", "train", "vectors", "export", "patches", "large", "export-large")
FIRST_CAPTIONS = 2
"""So many captions of each COCO picture are embedded before the others."""


def main() -> None:
    """Run one step of the recipe."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=STEPS)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--mirror", type=Path)
    parser.add_argument("--part", type=int, default=0)
    parser.add_argument("--parts", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=40)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--minilm", type=Path, help="model.safetensors of all-MiniLM-L6-v2, in float32")
    parser.add_argument("--tested", type=Path, help="file with the numbers of COCO's test pictures (.npy)")
    parser.add_argument("--name", default="eyes", help="the name of the weights")
    parser.add_argument("--start", type=Path, help="train, large: folder of exported eyes to begin with")
    parser.add_argument("--bfloat16", action="store_true", help="compute in bfloat16, where the processor can")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    work: Path = arguments.work
    if arguments.step == "pictures":
        mirror = sources.Mirror(arguments.mirror)
        stem = first_part("tinyvit", TINYVIT_CUT)
        maps.extract(_records(work, mirror), mirror, work / "maps", stem, arguments.part, arguments.parts)
    elif arguments.step == "texts":
        records = data.open_records(work)
        texts.extract(_sentences(records), work, minilm_part(MINILM_LAYERS - 1), fetch("minilm-tokenizer"))
    elif arguments.step == "patches":
        mirror = sources.Mirror(arguments.mirror)
        large.extract(_records(work, mirror), mirror, work, dinov2_part(), arguments.part, arguments.parts)
    elif arguments.step == "large":
        split = data.split(data.open_records(work), large.Seen(work).there(), _tested(arguments.tested))
        print(f"{len(split.train):,} pictures to learn from", flush=True)
        start = exported_large(arguments.start).state_dict() if arguments.start else None
        large.train(work, split, data.Texts(work), arguments.minutes, start=start, bfloat16=arguments.bfloat16)
    elif arguments.step == "export-large":
        large.write_vectors(work)
        large.export(work)
    elif arguments.step in ("vectors", "export"):
        model = vectors.load_model(work, arguments.name, fetch("tinyvit"), arguments.minilm)
        picture = export.as_exported(model, work)
        if arguments.step == "export":
            export.export(picture, model)
        else:
            stored = [text for _, text in coco_captions()]
            vectors.write(model, picture, work, stored, bfloat16=arguments.bfloat16)
    else:
        _learn(arguments)


def _learn(arguments: argparse.Namespace) -> None:
    """Train by one of the two ways."""
    work: Path = arguments.work
    torch.manual_seed(14)
    model, average = (Eyes(fetch("tinyvit"), arguments.minilm) for _ in range(2))
    average.load_state_dict(model.state_dict())
    pictures, said = data.Pictures(work / "maps"), data.Texts(work)
    split = data.split(data.open_records(work), pictures.there(), _tested(arguments.tested))
    print(f"{len(split.train):,} pictures to learn from", flush=True)
    if arguments.step == "warm-up":
        run = Run(model, average, work / "warm.pt", Rates(stage=0.0))
        training.warm_up(run, split, said, training.means(run.model, split, pictures, work), arguments.minutes)
        return
    path = work / f"{arguments.name}.pt"
    if not path.exists() and arguments.start:
        for part in (model, average):
            begin_with(part, arguments.start)
        model.scale.data.fill_(np.log(30.0))
    elif not path.exists():
        weights = torch.load(work / "warm.pt", weights_only=True)["average"]
        model.load_state_dict(weights)
        average.load_state_dict(weights)
    if arguments.start:  # a quarter of the time, and the eyes to begin with have it trained
        model.image.stage.shrink.requires_grad_(False)
    run = Run(model, average, path, Rates(heads=5e-4))
    training.train(run, split, said, pictures, arguments.minutes, bfloat16=arguments.bfloat16)


def _tested(path: Path) -> set[int]:
    return {int(number) for number in np.load(path)}


def _records(work: Path, mirror: sources.Mirror) -> list[sources.Record]:
    """Return the records of the work folder, drawn up first if there are none."""
    path = work / "records.jsonl"
    if not path.exists():
        work.mkdir(parents=True, exist_ok=True)
        captions = [fetch("coco-captions-train"), fetch("coco-captions-val")]
        sources.save(sources.all_records(mirror, captions), path)
    return sources.load(path)


def _sentences(records: list[sources.Record]) -> Iterator[str]:
    for record in records:
        yield from record.captions[:FIRST_CAPTIONS] if record.source == "coco" else record.captions
    for record in records:
        yield from record.captions


if __name__ == "__main__":
    main()
