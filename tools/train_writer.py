"""Train the writer, the caption language model inside the package.

    python tools/train_writer.py prepare --data DIR --eyes DIR --tested FILE --work DIR    # a quarter of an hour
    python tools/train_writer.py train --work DIR --minutes 60    # by likelihood
    python tools/train_writer.py tune --work DIR --minutes 40     # by CIDEr-D, from there
    python tools/train_writer.py export --work DIR                # into the package

DIR of ``--data`` holds ``flickr8k/`` (see ``recap.datasets``); ``--eyes`` is the work folder of ``train_eyes.py``, and
``--tested`` a file with the numbers of COCO's test pictures (``.npy``). ``train`` and ``tune`` go on
where they were stopped; each keeps its curve in a ``.jsonl`` file. A memory allocator that keeps its pages (such as
tcmalloc by ``LD_PRELOAD``) halves their time.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch


def main() -> None:
    """Run one step of the recipe."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=["prepare", "train", "tune", "export"])
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--eyes", type=Path)
    parser.add_argument("--tested", type=Path)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--weights", default="tuned", help="which weights are exported: likelihood or tuned")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--name", default="likelihood", help="train: the name of the weights")
    parser.add_argument("--width", type=int, default=256, help="train: of the model; small ones for comparisons")
    parser.add_argument("--start", type=Path, help="train: folder of an exported writer to begin with")
    parser.add_argument("--only", default="", help="train: only on these sources, joined by commas")
    parser.add_argument("--bfloat16", action="store_true", help="compute in bfloat16, where the processor can")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    if arguments.step == "prepare":
        from writer.prepare import prepare

        if None in (arguments.data, arguments.eyes, arguments.tested):
            parser.error("prepare needs --data, --eyes and --tested")
        prepare(arguments.data, arguments.eyes, arguments.tested, arguments.work)
    elif arguments.step == "train":
        from writer.training import train

        how = {
            "width": arguments.width,
            "only": arguments.only,
            "start": arguments.start,
            "bfloat16": arguments.bfloat16,
        }
        train(arguments.work, arguments.minutes, arguments.name, **how)
    elif arguments.step == "tune":
        from writer.tuning import tune

        tune(arguments.work, arguments.minutes, bfloat16=arguments.bfloat16)
    else:
        from writer.export import export

        export(arguments.work, arguments.weights)


if __name__ == "__main__":
    main()
