"""Trainable parameters, training time and inference time of ReCap beside ClipCap and SmallCap, on the same vectors.

Pictures and captions have been encoded before any clock starts, for every system alike. Where the baselines run on the
CPU, all seconds are those of the processor, summed over threads; elsewhere all are those of the clock on the wall.
ReCap has no language model here unless ``--lm`` names one.

Options are listed in ``docs/experiments.md``, under baselines.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from recap.captioner import ReCap
from recap.errors import InputError, MissingExtraError
from recap.experiments.base import Outcome, Runs, Setup
from recap.experiments.data import TITLES, Split
from recap.experiments.study import Study, model_name, points, settings_note
from recap.experiments.table import Cell, Column, Row, Section, Table, paper_section
from recap.files import write_json
from recap.metrics.cider import cider_d

if TYPE_CHECKING:
    from recap.experiments.baselines.systems import System
    from recap.experiments.baselines.training import Epoch, Trainer

Clock: TypeAlias = Callable[[], float]

OPTIONS = (
    *("steps", "epochs", "systems", "decoder", "mapper", "recipe", "tuned", "batch", "rate", "pictures"),
    *("checkpoints", "device", "clipcap", "smallcap", "tokenizer", "captions"),
)
THOUSAND = 1000
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
    training: float | None
    """The fit, or one epoch; nothing for a published checkpoint."""
    counted: str
    captioning: float = 0.0
    """Of 1,000 pictures."""
    dev: Cell | None = None
    epochs: str = "-"
    to_best: float | None = None
    """All epochs up to the one with the best CIDEr-D on dev."""


@dataclass(frozen=True)
class Material:
    """The splits, and ReCap, whose map and datastore also retrieve for SmallCap's prompts."""

    recap: ReCap
    train: Split
    dev: Split
    test: Split


def run(setup: Setup) -> Outcome:
    """Fit ReCap, train the baselines or a few steps of them, and set them side by side."""
    bench, systems = Study(setup, "none"), setup.listed("systems", "clipcap,smallcap")
    _check(setup, systems)
    train, dev, test = (bench.load(setup.on, split) for split in ("train", "dev", "test"))
    clock = clock_of(setup)
    recap, ours = measured_recap(bench, train, dev, test, clock)
    material = Material(recap, train, dev, test)
    measured = [ours, *(_baseline(system, setup, material, clock) for system in systems)]
    title = f"{TITLES[setup.on]}, {bench.encoder.name}, {len(train.ids):,} training pictures"
    tables = {"efficiency": _quality(title, measured, _notes(setup, recap, systems))}
    return Outcome(tables, times=_times(title, measured, setup))


def clock_of(setup: Setup) -> Clock:
    """Return the clock of all systems: the processor's, unless something else than the processor works."""
    return time.process_time if _on_cpu(setup) else time.perf_counter


def measured_recap(study: Study, train: Split, dev: Split, test: Split, clock: Clock) -> tuple[ReCap, Measured]:
    """Fit ReCap from vectors: the map, the datastore, and the index in it."""
    setup, model, settings = study.setup, study.model, study.settings
    started = clock()
    recap = study.make_captioner(train.fit(settings.method), train.store(study.encoder))
    seconds = clock() - started
    _log(setup, f"ReCap: fitted in {seconds:.2f} s")
    images = study.rows_of(test.first(setup.number("pictures", 100)), recap)
    captioning = _per_thousand(lambda: recap.caption_vectors(images), len(images), clock)
    result = cider_d([caption.text for caption in recap.caption_vectors(study.rows_of(dev, recap))], dev.captions)
    parameters = train.images.shape[1] * train.texts.shape[1]
    return recap, Measured(f"ReCap, {model_name(model)}", parameters, seconds, "measured", captioning, points(result))


def _check(setup: Setup, systems: list[str]) -> None:
    """Refuse what cannot be meant, before anything is trained."""
    for name in ("clipcap", "smallcap"):
        if setup.option(name, "") and name not in systems:
            raise InputError(f"{name}={setup.option(name, '')}: {name} is not among systems={','.join(systems)}")
    new = [name for name in systems if not setup.option(name, "")]
    if setup.option("captions", "") and new and not setup.number("epochs", 0, least=0):
        raise InputError(f"captions: {new[0]} is not trained. Give epochs=10, or {new[0]}=FILE, a published checkpoint")


def _baseline(name: str, setup: Setup, material: Material, clock: Clock) -> Measured:
    """Build or load one baseline, train it as far as wanted, and caption."""
    try:
        from recap.experiments.baselines.systems import load_system
    except ImportError as error:
        raise MissingExtraError("ClipCap and SmallCap", "baselines") from error
    system = load_system(name, setup, material.recap, material.train)
    parameters = sum(weight.numel() for weight in system.model.trainable.values())
    known = Measured(system.label, parameters, None, "published")
    if system.kind == "published":
        known = replace(known, dev=points(cider_d(system.captions(material.dev), material.dev.captions)))
    else:
        known = _trained(known, system, setup, material, clock)
    test, count = material.test, min(setup.number("pictures", 100), len(material.test.ids))
    seen, vectors = system.seen(test, 0, count), test.images[:count]
    # who has not learned to stop would write longer captions than after training
    limit = {} if known.dev else {"limit": system.mean_tokens(material.dev)}
    # retrieval is a part of captioning for a system that reads what was retrieved
    captioning = _per_thousand(lambda: system.write(seen, vectors, **limit), count, clock)
    if folder := setup.option("captions", ""):
        _write_captions(setup, Path(folder) / f"{name}.json", test, system.captions(test))
    return replace(known, captioning=captioning)


def _trained(known: Measured, system: System, setup: Setup, material: Material, clock: Clock) -> Measured:
    """Train to the best of dev, or tell the time of an epoch from a few steps."""
    from recap.experiments.baselines.training import judge

    trainer = _trainer(system, setup, material.train, clock)
    if not setup.number("epochs", 0, least=0):
        steps = setup.number("steps", 20)
        seconds = trainer.seconds_per_step(steps) * trainer.steps_per_epoch
        _log(setup, f"{system.label}: an epoch takes {seconds:,.0f} s, extrapolated from {steps} steps")
        counted = f"extrapolated from {steps} of {trainer.steps_per_epoch:,} steps"
        return replace(known, training=seconds, counted=counted)

    def report(epoch: Epoch) -> None:
        facts = f"loss {epoch.loss:.3f}, dev CIDEr-D {100 * epoch.cider_d:.1f}, {epoch.seconds:,.0f} s"
        _log(setup, f"{system.label}: epoch {epoch.number}, {facts}")

    dev, folder = system.examples(material.dev), setup.option("checkpoints", "")
    epochs = trainer.run(dev, Path(folder) / system.name if folder else None, report=report)
    return replace(
        known,
        training=epochs[0].seconds,
        counted="measured",
        dev=points(judge(trainer.model, dev)),
        epochs=f"best {trainer.best.number} of {len(epochs)}",
        to_best=trainer.best.seconds,
    )


def _trainer(system: System, setup: Setup, train: Split, clock: Clock) -> Trainer:
    from recap.experiments.baselines.systems import RECIPES, is_published_recipe
    from recap.experiments.baselines.training import Plan, Trainer

    known = RECIPES[system.name] if is_published_recipe(setup) else Plan(rate=RATES[system.kind])
    plan = replace(
        known,
        epochs=setup.number("epochs", 0, least=0) or known.epochs,
        batch=setup.number("batch", known.batch),
        rate=setup.real("rate", known.rate),
        seed=setup.seed,
    )
    return Trainer(system.model, system.examples(train, training=True), plan, clock=clock)


def _write_captions(setup: Setup, path: Path, test: Split, captions: list[str]) -> None:
    """Write captions as COCO results, which ``results`` of the captioning table reads."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, [{"image_id": image, "caption": text} for image, text in zip(test.ids, captions, strict=True)])
    _log(setup, f"wrote {path}")


def _per_thousand(work: Callable[[], object], pictures: int, clock: Clock) -> float:
    started = clock()
    work()
    return (clock() - started) * THOUSAND / pictures


def _notes(setup: Setup, recap: ReCap, systems: list[str]) -> tuple[str, ...]:
    """Return where captions come from."""
    model = recap.language_model
    looks = "" if not setup.option("smallcap", "") else " A published SmallCap looks at the patches of pictures."
    none = " It has no language model here unless --lm names one." if model is None else ""
    made = settings_note(recap.settings, model)
    return (
        f"Pictures and captions come as the same vectors to every system.{looks}",
        f"ClipCap and SmallCap write greedily. ReCap: {made.removeprefix('Captions: ')}{none}",
        *_recipe_notes(setup, recap, systems),
    )


def _recipe_notes(setup: Setup, recap: ReCap, systems: list[str]) -> list[str]:
    from recap.experiments.baselines.systems import is_published_recipe, recipe_note

    return [recipe_note(setup, recap.encoder, systems)] if is_published_recipe(setup) else []


def _quality(title: str, measured: list[Measured], notes: tuple[str, ...]) -> Table:
    """Return what two runs agree on."""
    rows = tuple(Row(item.label, (_millions(item), item.dev or Cell(), Cell(item.epochs))) for item in measured)
    paper = paper_section("efficiency", "", [column.name for column in QUALITY], setting="MS-COCO")
    return Table("Efficiency", QUALITY, (Section(title, rows), paper), notes)


def _times(title: str, measured: list[Measured], setup: Setup) -> Table:
    """Return the paper's table of efficiency."""
    fit = measured[0].training
    rows = tuple(Row(item.label, _time_cells(item, fit)) for item in measured)
    paper = paper_section("efficiency", "", [column.name for column in TIMES], setting="MS-COCO")
    clock = "CPU seconds" if _on_cpu(setup) else "Seconds of the clock on the wall"
    pictures = setup.number("pictures", 100)
    notes = (
        f"{clock}, vectors of pictures and captions given; encoding them costs every system the same. ReCap's training "
        "is its fit (map, datastore and index), that of the others one epoch over the same captions, without judging "
        f"on dev. Captioning starts from vectors, too, and is measured on {pictures} pictures; a baseline that was not "
        "trained writes as many tokens as captions of dev have on average.",
    )
    return Table("Efficiency: times", TIMES, (Section(title, rows), paper), notes)


def _time_cells(item: Measured, fit: float | None) -> tuple[Cell, ...]:
    trained = (Cell(item.training), Cell(item.counted), _ratio(item.training, fit))
    return (_millions(item), *trained, Cell(item.to_best), _ratio(item.to_best, fit), Cell(item.captioning))


def _on_cpu(setup: Setup) -> bool:
    return setup.option("device", "cpu").startswith("cpu")


def _log(setup: Setup, text: str) -> None:
    if setup.progress:
        print(text, file=sys.stderr, flush=True)


def _ratio(seconds: float | None, fit: float | None) -> Cell:
    return Cell(None if seconds is None or not fit else seconds / fit)


def _millions(item: Measured) -> Cell:
    return Cell(f"{item.parameters / 1e6:.2f}M")


RUNS: Runs = {"efficiency": (run, OPTIONS)}
