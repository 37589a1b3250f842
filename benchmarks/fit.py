"""Fitting the alignment: CPU seconds, memory and exactness against plain numpy, from memory-mapped files.

Each contender runs in a process of its own on the same files, so that CPU seconds and peak memory are its own:

    ours, Procrustes     PairStatistics(gram=False) over blocks, then Procrustes
    ours, both           PairStatistics over blocks, then Procrustes and OLS
    numpy Procrustes     images repeated for each caption, unit length, centred, E'F, SVD; all rows at once, in float32
    numpy lstsq          numpy.linalg.lstsq on a tenth of the rows, CPU seconds times ten
    float64              all in float64, block by block: what the others should give; not timed

    python benchmarks/fit.py                                          # full size: 2.8 GB of files, 8 GB of memory
    python benchmarks/fit.py --images 5000 --dimension 256            # a quick look
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from recap.alignment import PairStatistics
from recap.alignment.solvers import ols, procrustes

Array = npt.NDArray[Any]
BLOCK = 2048
LSTSQ_SHARE = 10


@dataclass(frozen=True)
class Files:
    """The vectors of one run: images, and their captions sorted by image, as raw float32."""

    folder: Path
    images: int
    captions: int
    dimension: int

    @property
    def image_file(self) -> Path:
        """Rows of images."""
        return self.folder / "images.f32"

    @property
    def text_file(self) -> Path:
        """Rows of captions, those of one image in a run."""
        return self.folder / "texts.f32"

    def mapped(self, first: int, images: int) -> tuple[Array, Array]:
        """Return a run of images and their captions as memory maps."""
        return (
            self._map(self.image_file, first, images),
            self._map(self.text_file, first * self.captions, images * self.captions),
        )

    def blocks(self) -> Iterator[tuple[Array, Array]]:
        """Yield blocks of images with their captions, each mapped anew so that the pages of the last are let go."""
        for start in range(0, self.images, BLOCK):
            yield self.mapped(start, min(BLOCK, self.images - start))

    def _map(self, file: Path, first: int, rows: int) -> Array:
        return np.memmap(file, np.float32, "r", offset=4 * first * self.dimension, shape=(rows, self.dimension))


def write_files(files: Files, seed: int = 0) -> None:
    """Write vectors like those of encoders: a common part, a falling spectrum; captions are turned images and noise."""
    random = np.random.default_rng(seed)
    d = files.dimension
    spectrum = (1 + np.arange(d, dtype=np.float32)) ** -0.5
    rotation = np.linalg.qr(random.standard_normal((d, d)))[0].astype(np.float32)
    basis = np.linalg.qr(random.standard_normal((d, d)))[0].astype(np.float32)
    image_mean, text_mean = (random.standard_normal(d, dtype=np.float32) / d**0.5 * 2 for _ in range(2))
    with files.image_file.open("wb") as image_file, files.text_file.open("wb") as text_file:
        for start in range(0, files.images, BLOCK):
            size = min(BLOCK, files.images - start)
            images = (random.standard_normal((size, d), dtype=np.float32) * spectrum) @ basis
            texts = np.repeat(images @ rotation.T + text_mean, files.captions, axis=0)
            texts += np.float32(0.3 / d**0.5) * random.standard_normal(texts.shape, dtype=np.float32)
            (images + image_mean).tofile(image_file)
            texts.tofile(text_file)


def ours(files: Files, gram: bool) -> dict[str, Array]:
    """Solve from sufficient statistics."""
    statistics = PairStatistics.zeros(files.dimension, files.dimension, gram=gram)
    for images, texts in files.blocks():
        statistics.update(images, texts, counts=np.full(len(images), files.captions))
    moments = statistics.centred()
    maps = {"procrustes": procrustes(moments.cross)}
    if moments.gram is not None:
        maps["ols"] = ols(moments.gram, moments.cross, rcond=statistics.rcond)
    return maps


def raw_rows(files: Files, images: int) -> tuple[Array, Array]:
    """Return all pairs of the first images as one would write it down: repeated, unit length, centred."""
    image_rows, text_rows = files.mapped(0, images)
    f = np.repeat(image_rows, files.captions, axis=0)
    f /= np.linalg.norm(f, axis=1, keepdims=True)
    f -= f.mean(axis=0)
    e = text_rows / np.linalg.norm(text_rows, axis=1, keepdims=True)
    e -= e.mean(axis=0)
    return f, e


def numpy_procrustes(files: Files) -> dict[str, Array]:
    """Solve Procrustes from the raw rows."""
    f, e = raw_rows(files, files.images)
    u, _, vt = np.linalg.svd(e.T @ f)
    return {"procrustes": u @ vt}


def numpy_lstsq(files: Files) -> dict[str, Array]:
    """Solve least squares from a tenth of the raw rows."""
    f, e = raw_rows(files, files.images // LSTSQ_SHARE)
    np.linalg.lstsq(f, e, rcond=None)
    return {}


def float64(files: Files) -> dict[str, Array]:
    """Solve both with nothing but float64, means first and then moments."""
    mean_f, mean_e = (np.zeros(files.dimension) for _ in range(2))
    for f, e in _float64_blocks(files):
        mean_f += f.sum(axis=0) / files.images
        mean_e += e.sum(axis=0) / files.images
    gram, cross = (np.zeros((files.dimension, files.dimension)) for _ in range(2))
    for f, e in _float64_blocks(files):
        gram += (f - mean_f).T @ (f - mean_f)
        cross += (e - mean_e).T @ (f - mean_f)
    u, _, vt = np.linalg.svd(cross)
    return {"procrustes": u @ vt, "ols": np.linalg.solve(gram, cross.T).T}


def _float64_blocks(files: Files) -> Iterator[tuple[Array, Array]]:
    """Yield unit images and the means of their unit captions, in float64."""
    for images, texts in files.blocks():
        f, e = images.astype(np.float64), texts.astype(np.float64)
        f /= np.linalg.norm(f, axis=1, keepdims=True)
        e /= np.linalg.norm(e, axis=1, keepdims=True)
        yield f, e.reshape(len(f), files.captions, -1).mean(axis=1)


CONTENDERS: dict[str, Callable[[Files], dict[str, Array]]] = {
    "ours, Procrustes": lambda files: ours(files, gram=False),
    "ours, both": lambda files: ours(files, gram=True),
    "numpy Procrustes": numpy_procrustes,
    "numpy lstsq": numpy_lstsq,
    "float64": float64,
}


@dataclass(frozen=True)
class Run:
    """What one contender needed, and the maps it found."""

    cpu: float
    megabytes: float
    maps: dict[str, Array]

    @classmethod
    def of(cls, name: str, files: Files, threads: int) -> Self:
        """Run a contender in a process of its own."""
        found = files.folder / "maps.npz"
        size = [f"--{key}={getattr(files, key)}" for key in ("images", "captions", "dimension", "folder")]
        command = [sys.executable, __file__, *size, "--contender", name]
        limits = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
        answer = subprocess.run(command, env=os.environ | limits, check=True, capture_output=True, text=True)
        with np.load(found) as maps:
            return cls(**json.loads(answer.stdout), maps=dict(maps))


def run_contender(name: str, files: Files) -> None:
    """Run one contender here, print what it needed and leave its maps in the folder."""
    before = _cpu_seconds()
    maps = CONTENDERS[name](files)
    needed = {"cpu": _cpu_seconds() - before, "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
    np.savez(files.folder / "maps.npz", **maps)  # type: ignore[arg-type]
    print(json.dumps(needed))


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def compare(files: Files, repeat: int, threads: int) -> None:
    """Run the contenders in turn, keep the best of each, and print the table."""
    exact = Run.of("float64", files, threads).maps
    best: dict[str, Run] = {}
    timed = [name for name in CONTENDERS if name != "float64"]
    for _ in range(repeat):
        for name in timed:
            run = Run.of(name, files, threads)
            best[name] = min(best.get(name, run), run, key=lambda run: run.cpu)
    print(f"{files.images} images x {files.captions} captions, d = {files.dimension}, float32 files, best of {repeat}")
    print(f"numpy {np.__version__}, {threads} BLAS thread(s), {platform.machine()}, {os.cpu_count()} cores\n")
    print(f"{'':<24}{'CPU s':>9}{'peak MB':>9}  largest difference to float64")
    for name, run in best.items():
        scale = LSTSQ_SHARE if name == "numpy lstsq" else 1
        label = name + (f" (x{scale})" if scale > 1 else "")
        apart = ", ".join(f"{kind} {np.abs(w - exact[kind]).max():.1e}" for kind, w in run.maps.items())
        print(f"{label:<24}{run.cpu * scale:>9.2f}{run.megabytes:>9.0f}  {apart or '-'}")
    print()
    lstsq = best["numpy lstsq"].cpu * LSTSQ_SHARE
    for name in ("ours, Procrustes", "ours, both"):
        cpu, rows = best[name].cpu, best["numpy Procrustes"].cpu
        print(
            f"{name:<18}{rows / cpu:6.1f} times fewer CPU seconds than numpy Procrustes, {lstsq / cpu:.1f} than lstsq, "
            f"{(rows + lstsq) / cpu:.1f} than both"
        )


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=113_400)
    parser.add_argument("--captions", type=int, default=5, help="captions of each image")
    parser.add_argument("--dimension", type=int, default=1024)
    parser.add_argument(
        "--folder", type=Path, help="where the files go; a temporary folder, removed afterwards, by default"
    )
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1, help="BLAS threads of every contender")
    parser.add_argument("--contender", choices=CONTENDERS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    size = (args.images, args.captions, args.dimension)
    if args.contender:
        run_contender(args.contender, Files(args.folder, *size))
        return
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        files = Files(Path(folder), *size)
        write_files(files)
        compare(files, args.repeat, args.threads)


if __name__ == "__main__":
    main()
