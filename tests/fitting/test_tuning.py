from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recap import ReCap
from recap.datastore import Datastore
from recap.encoders import Encoder, load_encoder
from recap.encoders.network import BatchedImageEncoder, CachedTextEncoder
from recap.errors import InputError
from recap.fitting.fit import Validation, encode_pairs
from recap.fitting.tuning import GRID, WRITER_GRID, Trial, tune_and_measure
from recap.language import Decoding
from recap.metrics import cider_d
from recap.types import Draft, Pair, Prompt


class Scripted:
    """A language model that writes the nearest caption, and counts what it was asked."""

    name, completes = "scripted", False

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []

    def write(self, prompts: Sequence[Prompt], decoding: Decoding) -> list[list[Draft]]:
        self.asked += [(p.text, tuple(p.pool), p.vector.tobytes(), decoding) for p in prompts if p.vector is not None]
        return [[Draft(prompt.captions[-1], -1.0)] * decoding.samples for prompt in prompts]


class Looking(Scripted):
    """One that reads details of the pictures, and notes them."""

    sights = ("first two",)

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[float] | None] = []

    def write(self, prompts: Sequence[Prompt], decoding: Decoding) -> list[list[Draft]]:
        self.seen += [None if prompt.details is None else prompt.details.tolist() for prompt in prompts]
        return super().write(prompts, decoding)


@pytest.fixture(scope="module")
def halves(pairs: list[Pair], encoder_folder: Path) -> tuple[ReCap, Validation]:
    """A captioner of two thirds of the pictures, and the others."""
    encoder = load_encoder(f"onnx:{encoder_folder}")
    captioner = ReCap.fit(
        [p for n, p in enumerate(pairs) if n % 3], encoder=encoder, language_model=None, pool=1, selection="cosine"
    )
    rest = encode_pairs(pairs, encoder, validation=pairs[::3]).validation
    return captioner, rest


def test_numbers_are_those_of_the_captions(
    halves: tuple[ReCap, Validation], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    captioner, rest = halves
    monkeypatch.setattr("recap.files.LOG_SECONDS", 0.0)
    monkeypatch.setattr("recap.fitting.tuning.BATCH", 4)
    numbers = tune_and_measure(captioner.configured(), rest, progress=True).about.numbers
    assert "recap: validation: 4 of 6 after " in capsys.readouterr().err
    texts = [caption.text for caption in captioner.caption_vectors(rest.vectors)]
    assert numbers["cider_d"] == pytest.approx(100 * cider_d(texts, rest.references).value)
    assert numbers["pictures"] == 6
    captions = [text for group in rest.references for text in group]
    similarity = (
        captioner.alignment.transform(rest.vectors)
        @ captioner.alignment.transform_texts(captioner.encoder.encode_texts(captions)).T
    )
    best = [captions[row] in rest.references[n] for n, row in enumerate(similarity.argmax(axis=1))]
    assert numbers["i2t_r1"] == pytest.approx(100 * np.mean(best))
    assert numbers["i2t_r10"] >= numbers["i2t_r5"] >= numbers["i2t_r1"]


@pytest.mark.parametrize("tune", [False, True])
def test_a_model_that_looks_is_tuned_and_measured_on_what_it_sees(
    pairs: list[Pair], detailed_encoder: Encoder, tune: bool
):
    model, validation = Looking(), pairs[::3]
    rest = [pair for pair in pairs if pair not in validation]
    options: dict[str, Any] = {"language_model": model, "calibrate": False, "tune": tune}
    ReCap.fit(rest, encoder=detailed_encoder, validation=validation, **options)
    vectors = detailed_encoder.encode_images([pair.image for pair in validation])
    assert len(model.seen) >= len(validation)
    assert {tuple(row or ()) for row in model.seen} == {tuple(row) for row in vectors[:, :2].tolist()}


def test_a_picture_that_is_gone_is_measured_by_its_vector(
    pairs: list[Pair], detailed_encoder: Encoder, new_pictures: dict[str, Path], tmp_path: Path
):
    captioner = ReCap.fit(pairs, encoder=detailed_encoder, language_model=Looking(), calibrate=False)
    places = (*list(new_pictures.values())[:2], tmp_path / "gone.png")
    vectors = detailed_encoder.encode_images([*places[:2], places[0]])
    rest = Validation(("a", "b", "c"), (("a wall",),) * 3, vectors, places)
    rows = rest.seen_by(captioner)
    assert rows[:, :-2] == pytest.approx(vectors)
    assert np.isnan(rows[:, -2:]).all(axis=1).tolist() == [False, False, True]
    assert rest.seen_by(captioner.configured(candidates="retrieved")).shape == vectors.shape


def test_tuning_never_chooses_worse_and_the_choice_becomes_the_settings(halves: tuple[ReCap, Validation]):
    captioner, rest = halves
    trials: list[Trial] = []
    tuned = tune_and_measure(captioner.configured(), rest, tune=trials.append)
    assert list(dict.fromkeys(trial.parameter for trial in trials)) == list(GRID)
    for parameter in GRID:
        tried = [trial for trial in trials if trial.parameter == parameter]
        (chosen,) = (trial for trial in tried if trial.chosen)
        assert chosen.cider_d == max(trial.cider_d for trial in tried)
        assert getattr(tuned.settings, parameter) == chosen.value
    assert tuned.about.numbers["cider_d"] == pytest.approx(max(trial.cider_d for trial in trials))
    again = tune_and_measure(captioner.configured(), rest).about.numbers["cider_d"]
    assert tuned.about.numbers["cider_d"] >= again
    assert isinstance(tuned.datastore, Datastore), "what remembers is gone"
    captions = [caption.text for caption in tuned.caption_vectors(rest.vectors)]
    assert tuned.about.numbers["cider_d"] == pytest.approx(100 * cider_d(captions, rest.references).value)


def test_nothing_is_done_twice(halves: tuple[ReCap, Validation], monkeypatch: pytest.MonkeyPatch):
    captioner, rest = halves
    model = Scripted()
    searched: list[bytes] = []
    embedded: list[str] = []
    search, encode_texts = Datastore.search, CachedTextEncoder.encode_texts

    def noted_search(self: Datastore, queries: np.ndarray, *args: object, **options: object) -> object:
        searched.extend(query.tobytes() for query in queries)
        return search(self, queries, *args, **options)

    def noted_texts(self: CachedTextEncoder, texts: Sequence[str], **options: bool) -> object:
        embedded.extend(texts)
        return encode_texts(self, texts, **options)

    monkeypatch.setattr(Datastore, "search", noted_search)
    monkeypatch.setattr(CachedTextEncoder, "encode_texts", noted_texts)
    monkeypatch.setattr(BatchedImageEncoder, "encode_each", lambda *_: pytest.fail("no picture is encoded again"))
    trials: list[Trial] = []
    tune_and_measure(captioner.configured(language_model=model), rest, tune=trials.append)
    assert {trial.parameter for trial in trials} == GRID.keys() | WRITER_GRID.keys()
    assert len(searched) == len(set(searched)) == len(GRID["method"]) * len(rest), "once for each map"
    assert len(embedded) == len(set(embedded))
    assert len(model.asked) == len(set(model.asked)) > 0
    assert len({vector for _, _, vector, _ in model.asked}) == len(rest), "one map: the others lost before"
    assert {decoding.samples for *_, decoding in model.asked} == {10}, "five are the first five of ten"


def test_a_language_model_is_tried_on_some_of_the_pictures(
    halves: tuple[ReCap, Validation], monkeypatch: pytest.MonkeyPatch
):
    captioner, rest = halves
    model = Scripted()
    model.reads_pool = True  # type: ignore[attr-defined]
    monkeypatch.setattr("recap.fitting.tuning.WRITTEN", 2)
    monkeypatch.setattr("recap.fitting.tuning.measure", lambda *_, **__: {})
    trials: list[Trial] = []
    tune_and_measure(captioner.configured(language_model=model), rest, tune=trials.append)
    assert len({vector for _, _, vector, _ in model.asked}) == 2
    assert "k" not in {trial.parameter for trial in trials}, "k says nothing to one that reads the pool"


def test_too_few_pictures_to_measure_with(halves: tuple[ReCap, Validation]):
    captioner, rest = halves
    with pytest.raises(InputError, match="1 validation pictures are too few"):
        tune_and_measure(captioner, Validation(rest.ids[:1], rest.references[:1], rest.vectors[:1]), tune=True)
