"""METEOR 1.5 and the original SPICE, which are Java programs, run in a process of their own.

METEOR's jar and paraphrase table are assets. SPICE also needs the models of CoreNLP 3.6.0, which no package carries: a
folder with all of it has to be named. Whatever is missing raises an error that says what it is and where to get it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import IO

import numpy as np

from recap.assets import fetch
from recap.errors import InputError, RecapError
from recap.files import progress_bar
from recap.metrics.corpus import MetricResult, bootstrap_sums, check_references, image_numbers
from recap.metrics.ngrams import Floats
from recap.metrics.spice import SpiceResult, spice_result
from recap.metrics.tokenizer import tokenize

_REPLICATES = 1000
_SPICE_JAR = "spice-1.0.jar"
_CORENLP_JARS = ("stanford-corenlp-3.6.0.jar", "stanford-corenlp-3.6.0-models.jar")
# how the program names what we call ...
_SPICE_KINDS = {
    "all": "All",
    "object": "Object",
    "attribute": "Attribute",
    "relation": "Relation",
    "colour": "Color",
    "count": "Cardinality",
    "size": "Size",
}


class JavaError(RecapError):
    """Java is missing, or a Java program failed."""


def meteor(
    candidates: Sequence[str],
    references: Sequence[Sequence[str]],
    image_index: Sequence[int] | None = None,
    *,
    jar: str | Path | None = None,
    paraphrases: str | Path | None = None,
    progress: bool = False,
) -> MetricResult:
    """Return METEOR 1.5 as coco-caption computes it: English, normalised, from the statistics of the whole corpus.

    The first arguments are those of ``recap.metrics.spice.spice``; ``jar`` is ``meteor-1.5.jar`` and ``paraphrases``
    ``paraphrase-en.gz``, both fetched on first use unless given. ``progress`` shows a bar.
    """
    check_references(references)
    index = image_numbers(candidates, len(references), image_index)
    java = find_java("METEOR")
    program, table = Path(jar or fetch("meteor-jar")), Path(paraphrases or fetch("meteor-paraphrases"))
    command = [java, "-Xmx2G", *_ENGLISH, "-jar", str(program.absolute()), "-", "-", "-stdio", "-l", "en"]
    command += ["-norm", "-a", str(table.absolute())]
    ours, theirs = _joined(candidates), [_joined(texts) for texts in references]
    asked = [" ||| ".join(["SCORE", *theirs[image], text]) for text, image in zip(ours, index, strict=True)]
    with _conversation(command) as talk:
        replies = talk.ask(asked, len(asked), progress=progress)
        counts = np.array([reply.split() for reply in replies], np.float64)
        *each, corpus = talk.evaluate(counts)
        # the counts add up, so that a corpus drawn again is judged by the sum of its rows
        drawn = bootstrap_sums(counts, lambda sums: talk.evaluate(sums)[:-1], replicates=_REPLICATES, seed=0)
    error = float(drawn.std(ddof=1)) if len(each) > 1 else float("nan")
    return MetricResult("METEOR", float(corpus), np.array(each), error)


def java_spice(
    candidates: Sequence[str],
    references: Sequence[Sequence[str]],
    image_index: Sequence[int] | None = None,
    *,
    home: str | Path | None = None,
    memory: str = "8G",
) -> SpiceResult:
    """Return SPICE 1.0 as its authors' program computes it.

    The first arguments are those of ``recap.metrics.spice.spice``; ``home`` is the folder of ``spice-1.0.jar`` and its
    ``lib``, CoreNLP 3.6.0 included, else ``RECAP_SPICE`` names it; ``memory`` is how much Java may take.
    """
    check_references(references)
    index = image_numbers(candidates, len(references), image_index)
    java = find_java("SPICE")
    folder = _spice_home(home)
    items = [
        {"image_id": number, "test": text, "refs": list(references[image])}
        for number, (text, image) in enumerate(zip(candidates, index, strict=True))
    ]
    with tempfile.TemporaryDirectory(prefix="recap-spice-") as work:
        given, found = Path(work, "input.json"), Path(work, "output.json")
        given.write_text(json.dumps(items), "utf-8")
        command = [java, f"-Xmx{memory}", *_ENGLISH, "-jar", _SPICE_JAR, str(given), "-out", str(found)]
        command += ["-subset", "-silent"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode != 0 or not found.is_file():
            raise JavaError(f"SPICE ({folder / _SPICE_JAR}) failed: {_last_lines(done.stderr or done.stdout)}")
        scores = {item["image_id"]: item["scores"] for item in json.loads(found.read_text("utf-8"))}
    if len(scores) != len(items):
        raise JavaError(f"SPICE ({folder / _SPICE_JAR}) scored {len(scores)} of {len(items)} candidates")
    return spice_result(
        "SPICE",
        {kind: np.array([_f(scores[n].get(name)) for n in range(len(items))]) for kind, name in _SPICE_KINDS.items()},
    )


def find_java(program: str) -> str:
    """Return the Java of ``JAVA_HOME`` or of the path; without one, say that ``program`` needs it."""
    home = os.environ.get("JAVA_HOME")
    found = (shutil.which("java", path=str(Path(home, "bin"))) if home else None) or shutil.which("java")
    if found is None:
        raise JavaError(
            f"{program} is a Java program, and there is no java on this machine: install a Java runtime (OpenJDK 8 or "
            "newer) and put it on the PATH, or name its folder in JAVA_HOME"
        )
    return str(Path(found).absolute())


# both programs read and print numbers and text in the manner of the machine's locale unless told otherwise
_ENGLISH = ("-Dfile.encoding=UTF-8", "-Duser.language=en", "-Duser.country=US")


def _spice_home(home: str | Path | None) -> Path:
    """Return the folder of the Java SPICE when all of it is there."""
    chosen = home or os.environ.get("RECAP_SPICE")
    if not chosen:
        raise InputError(
            f"the Java SPICE needs the folder of {_SPICE_JAR} and its lib (the folder spice of the package "
            f"pycocoevalcap 1.2) with {' and '.join(_CORENLP_JARS)} in lib (from CoreNLP 3.6.0, "
            "stanford-corenlp-full-2015-12-09.zip): name it, or set RECAP_SPICE"
        )
    folder = Path(chosen).resolve()
    if not (folder / _SPICE_JAR).is_file():
        raise InputError(f"{folder}: there is no {_SPICE_JAR}; take the folder spice of the package pycocoevalcap 1.2")
    missing = [name for name in _CORENLP_JARS if not (folder / "lib" / name).is_file()]
    if missing:
        raise InputError(
            f"{folder / 'lib'}: SPICE needs {' and '.join(missing)} there; they are in "
            "stanford-corenlp-full-2015-12-09.zip (CoreNLP 3.6.0, from its home page)"
        )
    return folder


def _f(score: dict[str, float | None] | None) -> float:
    value = (score or {}).get("f")
    return float("nan") if value is None else float(value)


def _joined(captions: Sequence[str]) -> list[str]:
    """Tokenise as coco-caption does before METEOR; bars would end a field."""
    return [" ".join(tokens).replace("|||", "") for tokens in tokenize(captions)]


class _Conversation:
    """Lines to a program and lines from it."""

    def __init__(self, process: subprocess.Popen[str], errors: IO[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._to, self._from, self._errors = process.stdin, process.stdout, errors

    def ask(self, lines: Sequence[str], replies: int, *, progress: bool = False) -> list[str]:
        """Send lines and return the replies; both flow at once, because the pipes hold little."""
        writer = Thread(target=self._write, args=(lines,), daemon=True)
        writer.start()
        shown = progress_bar(range(replies), desc="METEOR", unit="caption", progress=progress)
        received = [reply for _ in shown if (reply := self._from.readline())]
        writer.join()
        if len(received) < replies:
            self._errors.seek(0)
            raise JavaError(f"METEOR stopped after {len(received)} replies: {_last_lines(self._errors.read())}")
        return received

    def evaluate(self, counts: Floats) -> Floats:
        """Return the score of each row of counts, and of all rows together at the end."""
        rows = (" ".join(map(repr, row)) for row in counts.tolist())
        return np.array(self.ask([" ||| ".join(["EVAL", *rows])], len(counts) + 1), np.float64)

    def _write(self, lines: Sequence[str]) -> None:
        try:
            self._to.writelines(f"{line}\n" for line in lines)
            self._to.flush()
        except BrokenPipeError:
            return  # the reader finds the end of the replies, and says why


@contextmanager
def _conversation(command: Sequence[str]) -> Iterator[_Conversation]:
    # an empty folder to work in: Java reads some of its settings from where it is started
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors,
        tempfile.TemporaryDirectory(prefix="recap-meteor-") as empty,
    ):
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, cwd=empty, stdin=pipe, stdout=pipe, stderr=errors, encoding="utf-8")
        try:
            yield _Conversation(process, errors)
        finally:
            process.kill()
            process.communicate()


def _last_lines(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return " / ".join(lines[-3:]) if lines else "no message"
