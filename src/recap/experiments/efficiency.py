"""Trainable parameters, training time and inference time of ReCap beside ClipCap and SmallCap, on the same vectors.

Pictures and captions have been encoded before any clock starts, for every system alike. On the CPU seconds are those of
the processor, summed over threads; elsewhere they are those of the clock on the wall.

``--option`` takes:

- ``steps``: from so many steps the time of an epoch is told (20), unless ``epochs`` are trained;
- ``epochs``: train so many, or until three bring no better CIDEr-D on dev; 0 trains none (0);
- ``systems``: ``clipcap``, ``smallcap`` or both (``clipcap,smallcap``);
- ``decoder``: their language model: ``smollm2``, ``scratch``, a folder or a hub name (``smollm2``);
- ``tuned``: ``yes`` trains it, too, ``no`` freezes it (``no``, but ``scratch`` is always trained);
- ``batch`` and ``rate``: captions a step (40), and the highest rate of learning;
- ``pictures``: so many are captioned to tell the time of 1,000 (100);
- ``checkpoints``: a folder to write checkpoints to, and to go on from;
- ``device``: where the baselines run (``cpu``).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from recap.alignment import LinearAlignment
from recap.captioner import ReCap
from recap.datastore import CaptionStore
from recap.errors import InputError, MissingExtraError
from recap.experiments.base import Outcome, Setup
from recap.experiments.data import TITLES, Bench, Split
from recap.experiments.paper import paper_section
from recap.experiments.table import Cell, Column, Row, Section, Table
from recap.language import load_language_model
from recap.metrics.cider import cider_d
from recap.settings import Settings
from recap.types import Vectors

if TYPE_CHECKING:
    from recap.experiments.baselines.decoders import Baseline
    from recap.experiments.baselines.training import Epoch, Examples, Trainer

OPTIONS = ("steps", "epochs", "systems", "decoder", "tuned", "batch", "rate", "pictures", "checkpoints", "device")
THOUSAND = 1000
LABELS = {"clipcap": "ClipCap", "smallcap": "SmallCap"}
RATES = {"frozen": 2e-4, "tuned": 2e-5, "scratch": 1e-3}
"""Highest rates of learning, unless one is given. The published 2e-5 is for a language model that is tuned."""

QUALITY = (Column("|theta|"), Column("dev CIDEr-D"), Column("epochs", better="neither"))
TIMES = (
    Column("|theta|"),
    Column("Training", 2, "lower"),
    Column("counted"),
    Column("epoch / fit", 0, "neither"),
    Column("to best dev", 1, "lower"),
    Column("best / fit", 0, "neither"),
    Column("1,000 pictures", 1, "lower"),
)


@dataclass(frozen=True)
class Measured:
    """One system: what it trains, how well it does on dev, and how long everything took, in seconds."""

    label: str
    parameters: int
    training: float
    """The fit, or one epoch."""
    counted: str
    captioning: float
    """Of 1,000 pictures."""
    dev: Cell | None = None
    epochs: str = "-"
    to_best: float | None = None
    """All epochs up to the one with the best CIDEr-D on dev."""


def run(setup: Setup) -> Outcome:
    """Fit ReCap, train the baselines or a few steps of them, and set them side by side."""
    bench = Bench(setup)
    train, dev, test = (bench.load(setup.on, split) for split in ("train", "dev", "test"))
    recap, ours = _recap(bench, train, dev, test)
    pairs = Pairs(recap, train, dev, test)
    systems = setup.listed("systems", "clipcap,smallcap")
    measured = [ours, *(_baseline(system.strip(), setup, pairs) for system in systems)]
    title = f"{TITLES[setup.on]}, {bench.encoder.name}, {len(train.ids):,} training pictures"
    return Outcome({"efficiency": _quality(title, measured)}, times=_times(title, measured, setup))


@dataclass(frozen=True)
class Pairs:
    """The splits, with ReCap's map and datastore, which also retrieve for SmallCap's prompts."""

    recap: ReCap
    train: Split
    dev: Split
    test: Split

    def examples(self, split: Split, *, prompted: bool) -> Examples:
        """Return a split as a baseline reads it; a training picture never finds its own captions."""
        from recap.experiments.baselines.training import Examples

        prompts = [""] * len(split.ids)
        if prompted:
            prompts = _prompts(self.recap, split.images, split.ids if split is self.train else None)
        return Examples(split.images, split.captions, prompts)


def _recap(bench: Bench, train: Split, dev: Split, test: Split) -> tuple[ReCap, Measured]:
    """Fit ReCap from vectors: the map, the datastore, and the index in it."""
    setup, settings = bench.setup, Settings()
    model = load_language_model(setup.language_model or "none")
    started = time.process_time()
    alignment: LinearAlignment = train.fit(settings.method)
    store: CaptionStore = train.store(bench.encoder)
    recap = ReCap(bench.encoder, alignment.statistics_, store, language_model=model, alignment=alignment)
    seconds = time.process_time() - started
    _say(setup, f"ReCap: fitted in {seconds:.2f} s")
    writer = model.name if model else "no language model"
    images = test.images[: setup.number("pictures", 100)]
    captioning = _per_thousand(lambda: recap.caption_vectors(images), len(images), time.process_time)
    result = cider_d([caption.text for caption in recap.caption_vectors(dev.images)], dev.captions)
    return recap, Measured(
        f"ReCap, {writer}",
        train.images.shape[1] * train.texts.shape[1],
        seconds,
        "measured",
        captioning,
        Cell(100 * result.value, 100 * result.standard_error),
    )


def _baseline(system: str, setup: Setup, pairs: Pairs) -> Measured:
    """Build one baseline, train it as far as wanted, and caption."""
    try:
        from recap.experiments.baselines.training import Plan, Trainer, write_captions
    except ImportError as error:
        raise MissingExtraError("ClipCap and SmallCap", "baselines") from error
    model, kind = _built(system, setup, pairs.train)
    device = setup.option("device", "cpu")
    model.to(device)
    clock = time.process_time if device == "cpu" else time.perf_counter
    prompted = system == "smallcap"
    plan = Plan(
        setup.number("epochs", 0, least=0) or 10,
        setup.number("batch", 40),
        setup.real("rate", RATES[kind]),
        seed=setup.seed,
    )
    trainer = Trainer(model, pairs.examples(pairs.train, prompted=prompted), plan, clock=clock)
    parameters = sum(weight.numel() for weight in model.trainable.values())
    label = f"{LABELS[system]}, {model.decoder.name}{'' if kind == 'scratch' else f' ({kind})'}"
    known = _trained(trainer, setup, system, pairs, label)
    images = pairs.test.images[: setup.number("pictures", 100)]

    # who has not learned to stop would write longer captions than after training
    limit = {} if known.dev else {"limit": _mean_tokens(model, pairs.dev)}

    def caption() -> None:
        # retrieval is a part of captioning for a system that reads what was retrieved
        prompts = _prompts(pairs.recap, images, None) if prompted else [""] * len(images)
        write_captions(model, images, prompts, **limit)

    captioning = _per_thousand(caption, len(images), clock)
    return Measured(label, parameters, *known.training, captioning, known.dev, known.epochs, known.to_best)


@dataclass(frozen=True)
class _Trained:
    """What training came to."""

    training: tuple[float, str]
    dev: Cell | None = None
    epochs: str = "-"
    to_best: float | None = None


def _trained(trainer: Trainer, setup: Setup, system: str, pairs: Pairs, label: str) -> _Trained:
    """Train to the best of dev, or tell the time of an epoch from a few steps."""
    from recap.experiments.baselines.training import judge

    if not setup.number("epochs", 0, least=0):
        steps = setup.number("steps", 20)
        seconds = trainer.seconds_per_step(steps) * trainer.steps_per_epoch
        _say(setup, f"{label}: an epoch takes {seconds:,.0f} s, extrapolated from {steps} steps")
        return _Trained((seconds, f"extrapolated from {steps} of {trainer.steps_per_epoch:,} steps"))

    def report(epoch: Epoch) -> None:
        facts = f"loss {epoch.loss:.3f}, dev CIDEr-D {100 * epoch.cider_d:.1f}, {epoch.seconds:,.0f} s"
        _say(setup, f"{label}: epoch {epoch.number}, {facts}")

    dev = pairs.examples(pairs.dev, prompted=system == "smallcap")
    folder = setup.option("checkpoints", "")
    epochs = trainer.run(dev, Path(folder) / system if folder else None, report=report)
    result = judge(trainer.model, dev)
    return _Trained(
        (epochs[0].seconds, "measured"),
        Cell(100 * result.value, 100 * result.standard_error),
        f"best {trainer.best.number} of {len(epochs)}",
        trainer.best.seconds,
    )


def _built(system: str, setup: Setup, train: Split) -> tuple[Baseline, str]:
    """Return an untrained baseline, and what of its language model is trained."""
    import torch

    from recap.experiments.baselines.clipcap import ClipCap
    from recap.experiments.baselines.decoders import load_decoder
    from recap.experiments.baselines.smallcap import SmallCap

    kinds: dict[str, Callable[..., Baseline]] = {"clipcap": ClipCap, "smallcap": SmallCap}
    if system not in kinds:
        raise InputError(f"there is no baseline {system!r}; there are {', '.join(kinds)}")
    wanted = setup.option("tuned", "no")
    if wanted not in ("yes", "no"):
        raise InputError(f"the option tuned is yes or no, not {wanted!r}")
    captions = [text for texts in train.captions for text in texts]
    decoder = load_decoder(setup.option("decoder", "smollm2"), captions, seed=setup.seed)
    kind = "scratch" if not decoder.pretrained else "tuned" if wanted == "yes" else "frozen"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(setup.seed)
        return kinds[system](train.images.shape[1], decoder, tuned=kind != "frozen"), kind


def _prompts(recap: ReCap, images: Vectors, own: tuple[str, ...] | None) -> list[str]:
    """Return SmallCap's prompts with the captions that ReCap's map finds; ``own`` pictures' captions are left out."""
    from recap.experiments.baselines.smallcap import RETRIEVED, prompt

    found = recap.datastore.search(recap.alignment.transform(images), RETRIEVED, exclude_image_ids=own)
    rows = zip(found.ids, found.similarities, strict=True)
    return [prompt([item.text for item in recap.datastore.evidence(*row)]) for row in rows]


def _mean_tokens(model: Baseline, split: Split) -> int:
    """Return how many tokens the captions of a split have on average, with the one that ends them."""
    captions = [text for texts in split.captions for text in texts]
    return 1 + round(sum(len(model.decoder.encode(text)) for text in captions) / len(captions))


def _per_thousand(work: Callable[[], object], pictures: int, clock: Callable[[], float]) -> float:
    started = clock()
    work()
    return (clock() - started) * THOUSAND / pictures


def _quality(title: str, measured: list[Measured]) -> Table:
    """Return what two runs agree on."""
    rows = tuple(Row(item.label, (_millions(item), item.dev or Cell(), Cell(item.epochs))) for item in measured)
    paper = paper_section("efficiency", "", [column.name for column in QUALITY], setting="MS-COCO")
    notes = ("Pictures and captions come as the same vectors to every system. Captions are chosen greedily.",)
    return Table("Efficiency", QUALITY, (Section(title, rows), paper), notes)


def _times(title: str, measured: list[Measured], setup: Setup) -> Table:
    """Return the paper's table of efficiency."""
    fit = measured[0].training
    rows = tuple(
        Row(
            item.label,
            (
                _millions(item),
                Cell(item.training),
                Cell(item.counted),
                Cell(item.training / fit),
                Cell(item.to_best),
                Cell(None if item.to_best is None else item.to_best / fit),
                Cell(item.captioning),
            ),
        )
        for item in measured
    )
    paper = paper_section("efficiency", "", [column.name for column in TIMES], setting="MS-COCO")
    clock = "CPU seconds" if setup.option("device", "cpu") == "cpu" else "seconds"
    pictures = setup.number("pictures", 100)
    notes = (
        f"{clock}, vectors of pictures and captions given; encoding them costs every system the same. ReCap's training "
        "is its fit (map, datastore and index), that of the others one epoch over the same captions, without judging "
        f"on dev. Captioning starts from vectors, too, and is measured on {pictures} pictures; a baseline that was not "
        "trained writes as many tokens as captions of dev have on average.",
    )
    return Table("Efficiency: times", TIMES, (Section(title, rows), paper), notes)


def _say(setup: Setup, text: str) -> None:
    if setup.progress:
        print(text, file=sys.stderr, flush=True)


def _millions(item: Measured) -> Cell:
    return Cell(f"{item.parameters / 1e6:.2f}M")
