"""How fast the writer is: candidates for each CPU second, against SmolLM2-135M on llama.cpp with the same prompts.

    python benchmarks/writer.py [--pictures 6] [--rounds 2]

Prompts are made of captions of COCO train2014: for some captions, those nearest to them are "retrieved". Both models
write ten candidates for each prompt, in turns, and the best round of each counts.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from rich.console import Console
from rich.table import Table

from recap.encoders import load_encoder
from recap.language import Decoding, LanguageModel, PromptTemplate, load_language_model
from recap.packs.builtin import builtin_datastore
from recap.types import Prompt

NEIGHBOURS = 100
K = 13


def main() -> None:
    """Write with both models in turns and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pictures", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--captions", type=int, default=2000, help="size of the datastore the prompts come from")
    arguments = parser.parse_args()
    prompts = make_prompts(arguments.pictures, arguments.captions)
    models = {name: load_language_model(name) for name in ("writer", "smollm2")}
    decoding = Decoding()
    best = dict.fromkeys(models, float("inf"))
    for _ in range(arguments.rounds):
        for name, model in models.items():
            assert model is not None
            best[name] = min(best[name], seconds(model, prompts, decoding))
    table = Table(title=f"Ten candidates for each of {len(prompts)} prompts, best of {arguments.rounds} rounds")
    for column in ("model", "CPU ms a picture", "candidates a CPU second"):
        table.add_column(column, justify="left" if column == "model" else "right")
    for name, spent in best.items():
        table.add_row(name, f"{1000 * spent:.1f}", f"{decoding.samples / spent:.1f}")
    Console().print(table)
    print(f"the writer writes {best['smollm2'] / best['writer']:.0f} times the candidates in a CPU second")


def make_prompts(count: int, captions: int) -> list[Prompt]:
    """Return prompts of captions that lie close together."""
    encoder = load_encoder("builtin")
    datastore = builtin_datastore(encoder, captions, progress=True)
    rows = list(datastore)
    chosen = np.linspace(0, len(rows) - 1, count).astype(int)
    template = PromptTemplate.paper()
    prompts = []
    for row in chosen:
        query = datastore.raw_vectors([rows[row].id])
        found = datastore.search(query, NEIGHBOURS, exclude_image_ids=[rows[row].image_id])
        texts = [item.text for item in datastore.evidence(found.ids[0], found.similarities[0])]
        prompt = template.render(texts[:K], vector=query[0])
        prompts.append(replace(prompt, space=encoder.text.fingerprint, pool=texts))
    return prompts


def seconds(model: LanguageModel, prompts: Sequence[Prompt], decoding: Decoding) -> float:
    """Return the CPU seconds for one prompt."""
    started = time.process_time()
    model.write(prompts, decoding)
    return (time.process_time() - started) / len(prompts)


if __name__ == "__main__":
    main()
