"""BLEU, ROUGE-L and CIDEr-D against pycocoevalcap (coco-caption) on COCO val2014: the same numbers, time, memory.

    python benchmarks/metrics.py                                   # COCO, whose captions pycocoevalcap carries
    python benchmarks/metrics.py --blip DIR --flickr8k DIR         # published numbers too

The candidate of an image is its first caption, its references are the others. Both sides run in processes of their own,
in turn; CPU seconds include child processes, because the peer's tokenizer is one. Needs pycocoevalcap, Java and SciPy.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

NAMES = ["BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "ROUGE-L", "CIDEr-D"]
PARTS = ["tokenise", "BLEU", "ROUGE-L", "CIDEr-D"]
TOLERANCE, SPEED_UP = 1e-9, 25
BLIP = {"BLEU-1": 79.69, "BLEU-4": 40.34, "ROUGE-L": 60.58, "CIDEr-D": 136.53}
EXPERT = {"BLEU-1": 32.3, "BLEU-4": 30.8, "ROUGE-L": 32.3, "CIDEr-D": 43.9}

Scores: TypeAlias = list[npt.NDArray[np.float64]]
"""For each of NAMES the corpus value, then the values of all images."""
T = TypeVar("T")


class Stopwatch:
    """CPU seconds of this process and its children, part by part."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def run(self, part: str, work: Callable[[], T]) -> T:
        """Time one part."""
        before = sum(os.times()[:4])
        result = work()
        self.seconds[part] = sum(os.times()[:4]) - before
        return result


def score_ours(candidates: list[str], references: list[list[str]], watch: Stopwatch) -> Scores:
    """Score with recap; n-grams are counted by the first metric that asks for them."""
    # imports are not counted on either side, and recap imports this one when it is needed
    import pyarrow.compute  # noqa: F401

    from recap.metrics import CiderD, Corpus, score_bleu, score_rouge_l

    corpus = watch.run("tokenise", lambda: Corpus.of(candidates, references))
    results = watch.run("BLEU", lambda: score_bleu(corpus))
    results.append(watch.run("ROUGE-L", lambda: score_rouge_l(corpus)))
    results.append(watch.run("CIDEr-D", lambda: CiderD(corpus.references).score_corpus(corpus)))
    return [np.append(result.value, result.per_image) for result in results]


def score_peer(candidates: list[str], references: list[list[str]], watch: Stopwatch) -> Scores:
    """Score with pycocoevalcap."""
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge

    found, wanted = watch.run("tokenise", lambda: (java_tokens([[c] for c in candidates]), java_tokens(references)))
    bleu, each_bleu = watch.run("BLEU", lambda: Bleu(4).compute_score(wanted, found, verbose=0))
    rouge, each_rouge = watch.run("ROUGE-L", lambda: Rouge().compute_score(wanted, found))
    cider, each_cider = watch.run("CIDEr-D", lambda: Cider().compute_score(wanted, found))
    pairs = [*zip(bleu, each_bleu, strict=True), (rouge, each_rouge), (cider, each_cider)]
    return [np.append(value, each) for value, each in pairs]


def java_tokens(captions: Sequence[Sequence[str]]) -> dict[int, list[str]]:
    """Return the tokenised captions of each image, from pycocoevalcap."""
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    asked = {image: [{"caption": text} for text in texts] for image, texts in enumerate(captions)}
    tokens: dict[int, list[str]] = PTBTokenizer().tokenize(asked)
    return tokens


def work(side: str, source: Path, target: Path) -> None:
    """Be one of the two processes: score what is in ``source``, leave scores and costs beside ``target``."""
    candidates, references = json.loads(source.read_text(encoding="utf-8"))
    watch = Stopwatch()
    warnings.simplefilter("ignore")
    scores = (score_ours if side == "ours" else score_peer)(candidates, references, watch)
    np.save(target, np.stack(scores))
    target.with_suffix(".json").write_text(
        json.dumps({"seconds": watch.seconds, "memory": peak_memory()}), encoding="utf-8"
    )


def peak_memory() -> float:
    """Return the largest resident size of this process in MB. ``getrusage`` would count that of its parent too."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def run(side: str, source: Path, folder: Path) -> tuple[npt.NDArray[np.float64], dict[str, Any]]:
    """Start the process of one side and return its scores and costs."""
    target = folder / f"{side}.npy"
    subprocess.run([sys.executable, __file__, "--worker", side, str(source), str(target)], check=True)
    return np.load(target), json.loads(target.with_suffix(".json").read_text(encoding="utf-8"))


def coco_captions(split: str) -> list[tuple[int, str]]:
    """Return image and text of all captions of a split of COCO 2014, out of the pycocoevalcap package."""
    spec = find_spec("pycocoevalcap.spice")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("pycocoevalcap is not installed")
    jar = Path(spec.submodule_search_locations[0]) / "spice-1.0.jar"
    with zipfile.ZipFile(jar) as archive, archive.open(f"coco/annotations/captions_{split}2014.json") as file:
        return [(row["image_id"], row["caption"]) for row in json.load(file)["annotations"]]


def coco_corpus() -> tuple[list[str], list[list[str]]]:
    """Return the first caption of each image of val2014, and the others."""
    by_image: dict[int, list[str]] = {}
    for image, text in coco_captions("val"):
        by_image.setdefault(image, []).append(text)
    return [texts[0] for texts in by_image.values()], [texts[1:] for texts in by_image.values()]


def compare_tokenizers() -> bool:
    """Tokenise all COCO 2014 captions on both sides."""
    from recap.metrics import tokenize

    total = different = 0
    for split in ("train", "val"):
        captions = [text for _, text in coco_captions(split)]
        ours = [" ".join(tokens) for tokens in tokenize(captions)]
        theirs = [tokens[0] for tokens in java_tokens([[text] for text in captions]).values()]
        total += len(captions)
        different += sum(a != b for a, b in zip(ours, theirs, strict=True))
    print(f"\nTokenizer: {different} of {total:,} COCO 2014 captions differ from the Java tokenizer.")
    return different == 0


def compare_scores(repeats: int) -> bool:
    """Score val2014 on both sides, in turn, and print differences and the best costs."""
    candidates, references = coco_corpus()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = folder / "captions.json"
        source.write_text(json.dumps([candidates, references]), encoding="utf-8")
        runs = [(run("ours", source, folder), run("peer", source, folder)) for _ in range(repeats)]
    ours, theirs = runs[0][0][0], runs[0][1][0]
    differences = np.abs(ours - theirs)
    print(f"\nCOCO val2014, {len(candidates):,} images\n")
    print("| metric | recap | pycocoevalcap | largest difference of any image |\n|---|---|---|---|")
    for name, a, b, difference in zip(NAMES, ours[:, 0], theirs[:, 0], differences.max(axis=1), strict=True):
        print(f"| {name} | {a:.6f} | {b:.6f} | {difference:.1e} |")
    return bool(differences.max() < TOLERANCE) and print_costs([[side[1] for side in pair] for pair in runs])


def print_costs(runs: list[list[dict[str, Any]]]) -> bool:
    """Print the best CPU seconds of each part and the peak memory."""
    print("\n| CPU seconds, children included | recap | pycocoevalcap | ratio |\n|---|---|---|---|")
    sides = list(zip(*runs, strict=True))
    for part in PARTS:
        mine, theirs = (min(costs["seconds"][part] for costs in side) for side in sides)
        print(f"| {part} | {mine:.2f} | {theirs:.2f} | {theirs / mine:.0f} |")
    totals = [[sum(costs["seconds"].values()) for costs in side] for side in sides]
    mine, theirs = map(min, totals)
    ranges = " / ".join(f"{min(side):.2f}-{max(side):.2f}" for side in totals)
    print(f"| all | {mine:.2f} | {theirs:.2f} | {theirs / mine:.1f} |\n\nRange over {len(runs)} runs: {ranges} s.")
    memory = [min(costs["memory"] for costs in side) for side in sides]
    print(f"Peak memory: recap {memory[0]:.0f} MB, pycocoevalcap {memory[1]:.0f} MB without its Java process.")
    return bool(theirs / mine >= SPEED_UP and memory[0] < memory[1])


def check_blip(folder: Path) -> bool:
    """Score BLIP's captions of the Karpathy test split and compare with what coco-caption gives."""
    rows = json.loads((folder / "karpathy_test_references.json").read_text(encoding="utf-8"))
    references = {int(row["image"].rsplit("_", 1)[1].split(".")[0]): row["caption"] for row in rows}
    rows = json.loads((folder / "candidates_blip_vit_l.json").read_text(encoding="utf-8"))
    candidates = {row["image_id"]: row["caption"] for row in rows}
    scores = score_ours([candidates[image] for image in references], list(references.values()), Stopwatch())
    print("\nBLIP ViT-L, COCO Karpathy test\n\n| metric | recap | coco-caption |\n|---|---|---|")
    same = [print_row(name, 100 * scores[NAMES.index(name)][0], BLIP[name], 0.006) for name in BLIP]
    return all(same)


def check_expert(folder: Path) -> bool:
    """Correlate the metrics with the expert judgements of Flickr8k (Kendall's tau-c)."""
    from scipy.stats import kendalltau

    lines = (folder / "captions.token.txt").read_text(encoding="utf-8").splitlines()
    captions = dict(line.split("\t", 1) for line in lines)
    texts: list[str] = []
    images: list[str] = []
    judgements: list[list[int]] = []
    for line in (folder / "expert_annotations.txt").read_text(encoding="utf-8").splitlines():
        image, caption, *scores = line.split("\t")
        if caption.split("#")[0] != image:
            texts.append(captions[caption])
            images.append(image)
            judgements.append([int(score) for score in scores])
    references = [[captions[f"{image}#{number}"] for number in range(5)] for image in images]
    scores_of = dict(zip(NAMES, score_ours(texts, references, Stopwatch()), strict=True))
    human = np.array(judgements)
    print(f"\nFlickr8k-Expert, {human.size:,} judgements, tau-c\n\n| metric | recap | published |\n|---|---|---|")
    taus = {n: kendalltau(np.repeat(scores_of[n][1:], 3), human.ravel(), variant="c").statistic for n in EXPERT}
    same = [print_row(name, 100 * taus[name], EXPERT[name], 0.1) for name in EXPERT]
    return all(same)


def print_row(name: str, value: float, published: float, tolerance: float) -> bool:
    """Print a line of a table, and tell whether the value is the published one."""
    print(f"| {name} | {value:.2f} | {published} |")
    return abs(value - published) <= tolerance


def main() -> None:
    """Run what was asked for, and fail if any goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--repeats", type=int, default=3, help="runs of each side, of which the best counts (default: 3)"
    )
    parser.add_argument("--blip", type=Path, help="folder with karpathy_test_references.json and BLIP's captions")
    parser.add_argument("--flickr8k", type=Path, help="folder with captions.token.txt and expert_annotations.txt")
    parser.add_argument("--only-published", action="store_true", help="leave out the comparison with the peer")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        side, source, target = arguments.worker
        work(side, Path(source), Path(target))
        return
    reached = []
    if arguments.blip:
        reached.append(check_blip(arguments.blip))
    if arguments.flickr8k:
        reached.append(check_expert(arguments.flickr8k))
    if not arguments.only_published:
        reached += [compare_tokenizers(), compare_scores(arguments.repeats)]
    if not all(reached):
        raise SystemExit("a goal was missed")


if __name__ == "__main__":
    main()
