"""Throughput of captioning: the pipeline of ``recap caption`` against the plain loop over the same parts.

    python benchmarks/caption.py DIR [--lm LM] [--pictures 1000] [--loop-pictures 1000]

DIR holds Flickr8k (``images/``, ``captions.token.txt``, ``train.txt``, ``test.txt``); the captioner is fitted on train
with vectors from the cache. The loop takes one picture at a time, and has the language model write one sample at a
time, reading the prompt for each. Memory is counted above what the loaded models take, for a quarter of the pictures
and for all.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from recap.assets import vector_file
from recap.batch import Summary, caption_files, open_output, provenance
from recap.captioner import ReCap
from recap.datasets import read_flickr8k
from recap.encoders import load_encoder
from recap.language import Decoding, LanguageModel, load_language_model
from recap.types import Draft, Prompt


class OneAtATime:
    """A language model that is asked for one sample of one prompt at a time."""

    def __init__(self, model: LanguageModel) -> None:
        self.name, self.completes, self._model = model.name, model.completes, model
        self.fingerprint = model.fingerprint
        self.selection = getattr(model, "selection", "consensus")

    def write(self, prompts: Sequence[Prompt], decoding: Decoding) -> list[list[Draft]]:
        """Return drafts, each from a call of its own."""
        samples = decoding.samples if decoding.temperature else 1
        return [
            [
                self._model.write([prompt], replace(decoding, samples=1, seed=decoding.seed + n))[0][0]
                for n in range(samples)
            ]
            for prompt in prompts
        ]


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--encoder", default="builtin")
    parser.add_argument("--lm", default="writer")
    parser.add_argument("--pictures", type=int, default=1000)
    parser.add_argument("--loop-pictures", type=int, help="the loop takes only so many (default: all)")
    arguments = parser.parse_args()
    captioner = load(arguments.folder, arguments.encoder, arguments.lm)
    paths = [str(pair.image) for pair in read_flickr8k(arguments.folder, "test")][: arguments.pictures]
    captioner.caption(paths[0])
    _, quarter, _ = pipeline(captioner, paths[: len(paths) // 4])
    spent, whole, summary = pipeline(captioner, paths)
    looped = paths[: arguments.loop_pictures]
    loop_spent = loop(captioner, looped)
    table = Table(title=f"{len(paths):,} pictures, {captioner.encoder.name}, language model {arguments.lm}")
    for column in ("", "pictures a CPU second", "CPU ms a picture"):
        table.add_column(column)
    for name, seconds, count in (("recap caption", spent, len(paths)), ("one at a time", loop_spent, len(looped))):
        table.add_row(name, f"{count / seconds:.2f}", f"{1000 * seconds / count:.1f}")
    Console().print(table)
    print(f"ratio {(loop_spent / len(looped)) / (spent / len(paths)):.2f}")
    print(f"wall {summary.seconds:.1f} s, {summary.captioned / summary.seconds:.1f} pictures a second")
    print("stages, seconds of work: " + ", ".join(f"{name} {value:.1f}" for name, value in summary.busy.items()))
    print(f"limited by {summary.limit}")
    print(
        f"peak memory above the models: {quarter:.0f} MB for {len(paths) // 4} pictures, "
        f"{whole:.0f} MB for {len(paths)}"
    )


def load(folder: Path, encoder: str, language_model: str) -> ReCap:
    """Return a captioner fitted on train, its encoder without a cache."""
    cached = load_encoder(encoder, cache=vector_file())
    fitted = ReCap.fit(read_flickr8k(folder, "train"), encoder=cached, source="flickr8k", calibrate=False)
    return ReCap(
        load_encoder(encoder),
        fitted.statistics,
        fitted.datastore,
        language_model=load_language_model(language_model),
        settings=fitted.settings,
        alignment=fitted.alignment,
    )


def pipeline(captioner: ReCap, paths: Sequence[str]) -> tuple[float, float, Summary]:
    """Caption into a file; return CPU seconds, the peak of memory above the start in MB, and the summary."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before, started = memory("VmRSS"), time.process_time()
    generated_by = provenance(captioner, "flickr8k")
    with (
        tempfile.TemporaryDirectory() as folder,
        open_output(Path(folder) / "captions.jsonl", "jsonl", generated_by) as journal,
    ):
        summary = caption_files(captioner, paths, generated_by, journal=journal)
    return time.process_time() - started, memory("VmHWM") - before, summary


def loop(captioner: ReCap, paths: Sequence[str]) -> float:
    """Caption one picture after the other; return CPU seconds."""
    model = captioner.language_model
    plain = captioner.configured(language_model=OneAtATime(model)) if model else captioner
    started = time.process_time()
    for path in paths:
        plain.caption(path)
    return time.process_time() - started


def memory(name: str) -> float:
    """Return a figure of this process in MB, from Linux."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) / 1024


if __name__ == "__main__":
    main()
