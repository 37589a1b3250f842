"""``recap fit``: a pack from your own pairs, more pairs into a pack, and pairs out of it."""

from __future__ import annotations

import json
import shutil
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from recap.cli.embed import ray_option
from recap.cli.options import DEVICES

if TYPE_CHECKING:
    from recap.captioner import ReCap
    from recap.datasets import PairFiles
    from recap.fitting.pairs import FitReport
    from recap.fitting.tuning import Trial
    from recap.packs.captions import MakeStore

SHOWN = 10
"""So many of each kind of trouble are listed; --report has all."""


def _folder_or_url(context: click.Context, option: click.Parameter, given: str | None) -> str | None:
    from recap.parallel import storage

    if given is not None and not storage.is_url(given) and not Path(given).is_dir():
        raise click.BadParameter(f"{given!r} is neither a folder nor a URL")
    return given


@click.command()
@click.argument("pairs", required=False)
@click.option("--out", type=click.Path(path_type=Path), help="The folder to write the pack to.")
@click.option("--images", callback=_folder_or_url, help="Where the pictures of a file lie: a folder or URL.")
@click.option("--split", "splits", multiple=True, help="Of a Karpathy file.  [default: train and restval]")
@click.option("--encoder", default="builtin", show_default=True, help="See recap info.")
@click.option("--lm", "language_model", help="Language model.  [default: writer; none if not in English]")
@click.option("--method", help="procrustes, ols, ridge, beta-procrustes or identity.")
@click.option("-k", type=click.IntRange(1), help="How many retrieved captions the language model reads.")
@click.option("--language", help="Of the captions and the prompt: en, de, ja ...  [default: en]")
@click.option("--source", default="", help="A name for these captions in the datastore.  [default: the file's name]")
@click.option("--validation", help="Measure on this share of the pictures (0.1), on other pairs, or a Karpathy split.")
@click.option("--tune", is_flag=True, help="Choose map, retrieval and decoding on the validation pictures.")
@click.option("--keep-vectors", is_flag=True, help="Keep image vectors, so that --forget needs names only.")
@click.option("--calibrate/--no-calibrate", default=True, show_default=True, help="Fit the confidence of captions.")
@click.option("--update", type=click.Path(exists=True, file_okay=False), help="Add the pairs to this pack, exactly.")
@click.option("--forget", metavar="IDS", help="With --update: take these pictures out; commas, or a file of names.")
@click.option("--datastore", metavar="WHERE", help="Where captions go: see recap datastore move.  [default: the pack]")
@click.option("--description", help="For the card.")
@click.option("--author", help="For the card.")
@click.option("--licence", "--license", help="For the card: the licence of the captions, such as CC-BY-4.0.")
@click.option("--report", type=click.Path(dir_okay=False, path_type=Path), help="Write all broken and repeated pairs.")
@click.option("--device", type=DEVICES, default="cpu", show_default=True, help="Where the encoder runs.")
@ray_option
def fit(pairs: str | None, out: Path | None, update: str | None, forget: str | None, **given: Any) -> None:
    """Fit a pack to PAIRS of pictures and captions.

    PAIRS is a folder of pictures with .txt files of the same name (one caption a line), a .jsonl, .csv or .parquet file
    with image and caption, a COCO or Karpathy .json with --images, webdataset shards (.tar, a folder or a pattern of
    them), or vectors that recap embed made of any of these. Vectors are cached, so that a second fit takes seconds.
    The pairs may lie in a bucket (s3://..., gs://...). Their vectors are then kept beside --out until the pack is
    there, as with --ray.

    With --update the pairs are added to a pack, as if it had been fitted to all of them at once. With --forget pictures
    and their captions are taken out, as if they had never been there; unless the pack keeps vectors, PAIRS has to hold
    these pictures once more.
    """
    from recap.packs.captions import check_place, staging
    from recap.packs.folder import changing, check_target

    if forget and not update:
        raise click.UsageError("--forget goes with --update PACK")
    if not pairs and not forget:
        raise click.UsageError("Missing argument 'PAIRS'.")
    target = out or (Path(update) if update else None)
    if target is None:
        raise click.UsageError("Missing option '--out'.")
    if update and "://" in (given["images"] or ""):
        raise click.UsageError("--images: with --update the pictures have to lie on this machine")
    check_target(target)
    started, where = time.perf_counter(), given.pop("datastore")
    if where is not None:
        check_place(where)
    if update is None and target.exists() and any(target.iterdir()):
        click.echo(f"{target}: the pack that is there will be replaced; --update {target} would add to it", err=True)
    # what is added or taken out must meet the pack that was read
    with changing(target) if update else nullcontext():
        if forget is not None and update is not None:
            withdraw(update, forget, pairs, target, **given)
        elif pairs is not None:
            with staging(target, where) as make_store:
                if update is not None:
                    captioner = extend(update, pairs, **given)
                else:
                    captioner = start(pairs, target=target, make_store=make_store, **given)
                finish(captioner, target, given["report"], started, where)


def start(
    pairs: str,
    *,
    images: str | None,
    splits: tuple[str, ...],
    encoder: str,
    language_model: str | None,
    device: str,
    source: str,
    validation: str | None,
    tune: bool,
    keep_vectors: bool,
    report: Path | None,
    description: str | None,
    author: str | None,
    licence: str | None,
    calibrate: bool,
    ray: str | None,
    target: Path,
    make_store: MakeStore,
    **settings: Any,
) -> ReCap:
    """Fit a new pack."""
    from recap.assets import cache_dir
    from recap.captioner import ReCap
    from recap.datasets import PairFiles
    from recap.encoders import load_encoder
    from recap.packs.card import About
    from recap.parallel.fitting import fit_in_parts, is_for_parts

    apart = validation_pairs(validation or ("0.1" if tune else None), pairs, images)
    options: dict[str, Any] = {
        # the writer in the package was trained on English
        "language_model": language_model or ("writer" if (settings["language"] or "en").startswith("en") else "none"),
        "device": device,
        "source": source or Path(pairs).stem,
        "validation": apart,
        "tune": show if tune else False,
        "keep_vectors": keep_vectors,
        "calibrate": calibrate,
        "about": About().but(description=description, author=author, licence=licence),
        "progress": True,
        **{name: value for name, value in settings.items() if value is not None},
    }
    if ray is not None or is_for_parts(pairs, images):
        options |= {"images": images, "splits": splits or None, "make_store": make_store}
        return committed(fit_in_parts(pairs, encoder, ray, target, **options))
    known = PairFiles(pairs, images=images, splits=splits or None)
    loaded = load_encoder(encoder, device=device, cache=cache_dir() / "vectors.sqlite")
    return committed(ReCap.fit(known, encoder=loaded, datastore=make_store(loaded.text), **options))


def committed(captioner: ReCap) -> ReCap:
    """Return a new captioner; if its captions are on disk, all of them, so that the pack can have the same files."""
    from recap.datastore import DiskStore

    if isinstance(captioner.datastore, DiskStore):
        captioner.datastore.commit()
    return captioner


def extend(
    update: str,
    pairs: str,
    *,
    images: str | None,
    splits: tuple[str, ...],
    source: str,
    device: str,
    calibrate: bool,
    **given: Any,
) -> ReCap:
    """Add pairs to a pack."""
    refuse_settings(given)
    from recap.datasets import PairFiles

    known = PairFiles(pairs, images=images, splits=splits or None)
    captioner = load(update, device, given)
    captioner.update(known, source=source or Path(pairs).stem, progress=True, calibrate=calibrate)
    return captioner


def withdraw(
    update: str,
    forget: str,
    pairs: str | None,
    target: Path,
    *,
    images: str | None,
    source: str,
    device: str,
    **given: Any,
) -> None:
    """Take pictures out of a pack."""
    refuse_settings(given)
    from recap.datasets import PairFiles

    known = None if pairs is None else PairFiles(pairs, images=images)
    captioner = load(update, device, given)
    gone = captioner.forget(names(forget), known, source=source or None)
    captioner.save_pretrained(target)
    left = f"{captioner.alignment.method} of {captioner.statistics.pairs:,.0f} pairs is left"
    click.echo(f"{target}: {gone:,} captions withdrawn; {left}", err=True)


def load(update: str, device: str, given: dict[str, Any]) -> ReCap:
    """Load the pack to change, with what the options say about it."""
    from recap.assets import cache_dir
    from recap.captioner import ReCap

    captioner = ReCap.from_pretrained(update, device=device, progress=True, cache=cache_dir() / "vectors.sqlite")
    about = {name: given[name] for name in ("description", "author", "licence")}
    captioner.about = captioner.about.but(**about)
    return captioner


def refuse_settings(given: dict[str, Any]) -> None:
    """Refuse options that only make sense for a new pack."""
    if given.get("ray") is not None:
        raise click.UsageError("--ray: not with --update; fit the new pairs to a pack, and see recap pack merge")
    settled = [name for name in ("method", "k", "language", "validation", "tune", "keep_vectors") if given.get(name)]
    if settled:
        names = ", ".join(f"-{name}" if len(name) == 1 else f"--{name.replace('_', '-')}" for name in settled)
        raise click.UsageError(f"{names}: not with --update; these were settled when the pack was fitted")


def validation_pairs(given: str | None, pairs: str, images: str | None) -> float | PairFiles | None:
    """Return the share of pictures, the file, or the split of PAIRS that --validation names."""
    from recap.datasets import PairFiles

    if given is None:
        return None
    try:
        return float(given)
    except ValueError:
        if "://" in (images or ""):
            message = f"--validation {given}: of pictures in a bucket only a share can be kept apart"
            raise click.UsageError(message) from None
        if Path(given).exists():
            return PairFiles(given, images=images)
        if Path(pairs).suffix.lower() == ".json":
            return PairFiles(pairs, images=images, splits=[given])
    raise click.UsageError(f"--validation {given}: neither a share, nor a file, nor a split of a Karpathy file")


def names(given: str) -> list[str]:
    """Return the names in a file, one a line, or between commas."""
    path = Path(given)
    listed = path.read_text(encoding="utf-8").split("\n") if path.is_file() else given.split(",")
    found = [name.strip() for name in listed if name.strip()]
    if not found:
        raise click.UsageError(f"--forget {given}: no names of pictures")
    return found


def show(trial: Trial) -> None:
    """Print one row of the table of trials."""
    mark = "  chosen" if trial.chosen else ""
    click.echo(f"{trial.parameter:<12}{trial.value!s:<18}CIDEr-D {trial.cider_d:6.1f}{mark}", err=True)


def finish(captioner: ReCap, target: Path, report: Path | None, started: float, datastore: str | None = None) -> None:
    """Save the pack, say what it is and what was wrong with the pairs; exit with 1 when some were broken."""
    from recap.datastore import DiskArguments, DiskStore
    from recap.packs.captions import move
    from recap.parallel.fitting import vectors_beside

    captioner.save_pretrained(target)
    if datastore is not None and not (datastore == DiskArguments.kind and isinstance(captioner.datastore, DiskStore)):
        move(target, datastore)
    shutil.rmtree(vectors_beside(target), ignore_errors=True)
    told = captioner.report
    if report is not None:
        lines = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in told.lines())
        report.write_text(lines, encoding="utf-8")
    _tell(told, report)
    for name in ("cider_d", "i2t_r1", "t2i_r1"):
        if name in captioner.about.numbers:
            click.echo(f"validation {name}: {captioner.about.numbers[name]:.1f}", err=True)
    known = told.pictures if captioner.pictures is None else len(captioner.pictures)
    added = f"{told.pictures:,} pictures added; " if known > told.pictures else ""
    click.echo(
        f"{target}: {added}{captioner.alignment.method} fitted on {captioner.statistics.pairs:,.0f} pairs of "
        f"{known:,} pictures in {time.perf_counter() - started:.1f} s",
        err=True,
    )
    if told.broken:
        sys.exit(1)


def _tell(told: FitReport, report: Path | None) -> None:
    for title, items in (
        ("broken", [str(error) for error in told.broken]),
        (
            "repeated pictures, whose new captions are used",
            [f"{a} is the same as {b}" for a, b in told.repeated_pictures],
        ),
        ("repeated pairs, left out", [f"{name}: {caption}" for name, caption in told.repeated_pairs]),
    ):
        if items:
            click.echo(f"{len(items):,} {title}:", err=True)
            for item in items[:SHOWN]:
                click.echo(f"  {item}", err=True)
            if len(items) > SHOWN:
                where = f"all are in {report}" if report else "--report FILE lists all"
                click.echo(f"  ... and {len(items) - SHOWN:,} more; {where}", err=True)
