"""Which metrics agree with people: Kendall's tau-c on Flickr8k-Expert.

    python benchmarks/judgement.py --flickr8k DIR [--encoder builtin|builtin-fast] [--method ols|procrustes|ridge]

DIR holds ``images/``, ``captions.token.txt``, ``train.txt`` and ``expert_annotations.txt``. The map is fitted on train
only; references are the picture's own five captions; every single expert score is one judgement. Published are
BLEU-1 32.3, BLEU-4 30.8, ROUGE-L 32.3, CIDEr 43.9, SPICE 44.9, and with CLIP: CLIP-S 51.4, aCLIP-S 55.1 (55.7 with
the best encoder), RefaCLIP-S 55.5 (56.1). aCos and RefaCos are recap's own: aCLIP-S and RefaCLIP-S without clipping.
Vectors are kept in the cache: a second run takes seconds, and a minute where SPICE parses.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from recap.alignment import LinearAlignment
from recap.assets import vector_file
from recap.datasets import read_flickr8k
from recap.datasets.judgements import Judgements, read_judgements
from recap.encoders import load_encoder
from recap.fitting.fit import encode_pairs
from recap.metrics.correlation import correlate_report, rater_tau
from recap.metrics.evaluate import evaluate_judgements
from recap.metrics.report import Report

METRICS = "bleu-1,bleu-4,rouge-l,cider-d,spice,softspice,aclip-s,refaclip-s,acos,refacos"


def main() -> None:
    """Fit, score, correlate, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flickr8k", type=Path, required=True)
    parser.add_argument("--encoder", default="builtin")
    parser.add_argument("--method", action="append", help="of the map; may be given several times (default: ols)")
    parser.add_argument("--ridge", type=float, default=0.1, help="of --method ridge; 0.1 is best at retrieval on dev")
    parser.add_argument("--metrics", default=METRICS)
    options = parser.parse_args()
    folder: Path = options.flickr8k
    judgements = read_judgements(folder / "expert_annotations.txt", "flickr8k-expert")
    assert isinstance(judgements, Judgements)
    encoder = load_encoder(options.encoder, cache=vector_file())
    started = time.perf_counter()
    pairs = read_flickr8k(folder, "train")
    encoded = encode_pairs(pairs, encoder, source="flickr8k", progress=True)
    print(f"{len(pairs):,} training pictures encoded in {time.perf_counter() - started:.1f} s")
    metrics = options.metrics
    for method in options.method or ["ols"]:
        settings = {"ridge": options.ridge} if method == "ridge" else {}
        alignment = LinearAlignment.from_statistics(encoded.statistics, method, **settings)
        report = evaluate_judgements(
            judgements, folder / "images", encoder=encoder, alignment=alignment, metrics=metrics, progress=True
        )
        print_table(f"Flickr8k-Expert, {encoder.name}, {method} on Flickr8k train", judgements, report)
        metrics = "aclip-s,refaclip-s,acos,refacos"


def print_table(title: str, judgements: Judgements, report: Report) -> None:
    """Print tau-c with its interval for each metric, and how well the experts agree with each other."""
    table = Table(title=f"{title}: {len(judgements) * 3:,} judgements")
    for column in ("metric", "tau-c", "95 % interval", "tau-b"):
        table.add_column(column, justify="left" if column == "metric" else "right")
    for row in correlate_report(report, judgements):
        low, high = (f"{100 * bound:.1f}" for bound in row.interval_c)
        table.add_row(row.metric, f"{100 * row.tau_c:.2f}", f"{low} to {high}", f"{100 * row.tau_b:.2f}")
    for missing in report.unavailable:
        table.add_row(missing.name, "-", missing.reason, "-")
    experts = rater_tau(np.array(judgements.ratings), "c")
    table.add_row("one expert with another", f"{100 * experts:.2f}", "", "")
    Console().print(table)


if __name__ == "__main__":
    main()
