"""The datastore-augmentation loop against a plain reading of the algorithm, and killed in the middle."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from recap import ReCap
from recap.alignment import LinearAlignment
from recap.datastore import Datastore
from recap.encoders import Encoder, load_encoder
from recap.errors import InputError
from recap.files import RUN, write_json
from recap.fitting import augmentation
from recap.fitting.augmentation import Augmented, Scorer, augment, augment_pairs, retrieve_only, training_pictures
from recap.fitting.fit import Validation, encode_pairs
from recap.fitting.tuning import add_cache
from recap.language import Decoding
from recap.metrics import aclip_s, cider_d, refaclip_s
from recap.metrics.scenegraph import SceneGraph, Synonyms
from recap.types import Draft, Pair, Prompt

COLOURS = ("red", "green", "blue", "yellow", "purple", "cyan")
PATTERNS = ("this {} wall", "somebody painted this {}", "the wall", "a {} wall")


class Scripted:
    """Writes three new sentences about the colour most captions of the prompt name, and one that people wrote."""

    name, completes = "scripted", False

    def __init__(self, broken_after: int | None = None) -> None:
        self.asked = 0
        self.broken_after = broken_after

    def write(self, prompts: Sequence[Prompt], decoding: Decoding) -> list[list[Draft]]:
        return [self.one(prompt) for prompt in prompts]

    def one(self, prompt: Prompt) -> list[Draft]:
        self.asked += 1
        if self.broken_after is not None and self.asked > self.broken_after:
            raise KeyboardInterrupt
        words = [word for text in prompt.captions for word in text.split()]
        colours = [word for word in words if word in COLOURS]
        colour = max(sorted(set(colours)), key=colours.count)
        return [Draft(pattern.format(colour), -1.0) for pattern in PATTERNS]


@pytest.fixture(scope="module")
def world(pairs: list[Pair], encoder_folder: Path) -> tuple[ReCap, Validation, Validation]:
    """A captioner of two thirds of the pictures, these, and the others."""
    encoder = load_encoder(f"onnx:{encoder_folder}")
    fitted = [pair for number, pair in enumerate(pairs) if number % 3]
    encoded = encode_pairs(fitted, encoder, validation=pairs[::3], keep_vectors=True)
    captioner = ReCap.fit(
        fitted, encoder=encoder, language_model=Scripted(), source="walls", candidates="lm", selection="cosine"
    )
    return captioner, training_pictures(encoded), encoded.validation


class Looking(Scripted):
    """One that reads details of the pictures, and notes them."""

    sights = ("first two",)

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[float, ...]] = []

    def one(self, prompt: Prompt) -> list[Draft]:
        self.seen.append(() if prompt.details is None else tuple(prompt.details.tolist()))
        return super().one(prompt)


@pytest.mark.parametrize("kind", ["files", "memory"])
def test_a_model_that_looks_sees_training_and_validation_pictures(
    pairs: list[Pair], detailed_encoder: Encoder, tmp_path: Path, kind: str
):
    if kind == "memory":
        pairs = [replace(pair, image=Image.open(str(pair.image)).convert("RGB")) for pair in pairs]
    fitted = [pair for number, pair in enumerate(pairs) if number % 3]
    model = Looking()
    options: dict[str, Any] = {"candidates": "lm", "selection": "cosine", "calibrate": False}
    captioner = ReCap.fit(fitted, encoder=detailed_encoder, language_model=model, **options)
    augment_pairs(captioner, fitted, pairs[::3], metric="aclip-s", rounds=1, ks=(3,), state=tmp_path)
    vectors = detailed_encoder.encode_images([pair.image for pair in pairs])
    assert set(model.seen) == {tuple(row) for row in vectors[:, :2].tolist()}
    blind = captioner.configured(language_model=Scripted())
    with pytest.raises(InputError, match="pictures looked at"):
        augment_pairs(blind, fitted, pairs[::3], metric="aclip-s", rounds=1, ks=(3,), state=tmp_path)


def judge_of(captioner: ReCap) -> LinearAlignment:
    return LinearAlignment.from_statistics(captioner.statistics, "procrustes")


def synthetic(captioner: ReCap) -> dict[str, str]:
    store = captioner.datastore
    assert isinstance(store, Datastore)
    return {row.text: row.image_id for row in store if row.synthetic}


def test_another_encoder_and_map_may_judge(
    world: tuple[ReCap, Validation, Validation], pairs: list[Pair], shared_encoder_folder: Path
):
    captioner, _, validation = world
    judge, fitted = load_encoder(f"onnx:{shared_encoder_folder}"), [p for n, p in enumerate(pairs) if n % 3]
    options = {"metric": "aclip-s", "rounds": 1, "ks": (3,)}
    found = augment_pairs(captioner, fitted, pairs[::3], judge_encoder=judge, judge_method="ols", **options)
    texts = [text for pair in fitted for text in pair.captions]
    owners = [row for row, pair in enumerate(fitted) for _ in pair.captions]
    seen = judge.encode_images([pair.image for pair in fitted])
    mapped = LinearAlignment("ols").fit(seen, judge.encode_texts(texts), owners)
    captions = captioner.configured(k=3, pool=3).caption_vectors(validation.vectors)
    images = judge.encode_images([pair.image for pair in pairs[::3]])
    scores = aclip_s(images, judge.encode_texts([caption.text for caption in captions]), mapped)
    assert found.rounds[0].score == pytest.approx(float(scores.astype(float).mean()), abs=1e-5)
    own = augment_pairs(captioner, fitted, pairs[::3], **options)
    assert own.rounds[0].score != pytest.approx(found.rounds[0].score, abs=1e-3)


def test_a_round_is_what_the_algorithm_says(world: tuple[ReCap, Validation, Validation]):
    captioner, train, validation = world
    judge = judge_of(captioner)

    def mean(k: int) -> float:
        captions = captioner.configured(k=k, pool=k).caption_vectors(validation.vectors)
        texts = captioner.encoder.encode_texts([caption.text for caption in captions])
        return float(aclip_s(validation.vectors, texts, judge).astype(float).mean())

    found = augment(captioner, train, validation, metric="aclip-s", rounds=1, ks=(5, 2))
    before, after = found.rounds
    assert before.tried == pytest.approx({2: mean(2), 5: mean(5)})
    assert before.k == max((2, 5), key=lambda k: (before.tried[k], -k))
    assert before.score == before.tried[before.k]
    people = {row.text for row in captioner.datastore}
    expected: dict[str, str] = {}
    for name, vector in zip(train.ids, train.vectors, strict=True):
        (proposal,) = captioner.configured(k=before.k, pool=before.k).propose(vector[None])
        texts = list(proposal.drafts)
        rows = captioner.encoder.encode_texts(texts)
        scores = aclip_s(np.repeat(vector[None], len(texts), axis=0), rows, judge)
        best = max(zip(scores.tolist(), texts, strict=True))
        if best[0] > before.score and best[1] not in people:
            expected.setdefault(best[1], name)
    assert expected, "the test world has something to add"
    assert synthetic(found.captioner) == expected
    assert (after.added, after.synthetic) == (len(expected), len(expected))
    assert (before.added, before.in_prompt) == (0, 0)
    assert after.in_prompt > 0


def test_the_captioner_itself_stays_as_it_is_and_the_result_is_a_pack(
    world: tuple[ReCap, Validation, Validation], tmp_path: Path
):
    captioner, train, validation = world
    size = len(captioner.datastore)
    found = augment(captioner, train, validation, metric="refaclip-s", rounds=2, ks=(2, 5))
    assert len(captioner.datastore) == size
    assert not synthetic(captioner)
    found.captioner.save_pretrained(tmp_path / "pack")
    loaded = ReCap.from_pretrained(tmp_path / "pack", language_model="none")
    assert loaded.settings.k == found.rounds[-1].k
    assert synthetic(loaded) == synthetic(found.captioner)
    assert loaded.about.data["synthetic_captions"] == len(synthetic(loaded)) == found.rounds[-1].synthetic
    assert loaded.about.numbers["RefaCLIP-S"] == pytest.approx(100 * found.rounds[-1].score)
    text, picture = next(iter(synthetic(loaded).items()))
    assert {row.source for row in loaded.datastore if row.text == text} == {"walls"}
    assert picture in train.ids


def test_who_withdraws_a_picture_takes_its_synthetic_captions_along(
    world: tuple[ReCap, Validation, Validation], pairs: list[Pair]
):
    captioner, train, validation = world
    found = augment(captioner, train, validation, metric="aclip-s", rounds=1, ks=(5,)).captioner
    text, picture = next(iter(synthetic(found).items()))
    found.forget([picture], [pair for pair in pairs if pair.id == picture])
    assert text not in synthetic(found)


def test_a_killed_run_goes_on_and_ends_the_same(
    world: tuple[ReCap, Validation, Validation], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    captioner, train, validation = world
    monkeypatch.setattr(augmentation, "BLOCK", 4)

    def run(model: Scripted, state: Path | None) -> Augmented:
        twin = captioner.configured(language_model=model)
        return augment(twin, train, validation, metric="refaclip-s", rounds=2, ks=(2, 5), state=state)

    whole = Scripted()
    expected = run(whole, None)
    asked = 0
    for broken_after in (14, 5, 9):
        model = Scripted(broken_after)
        with pytest.raises(KeyboardInterrupt):
            run(model, tmp_path / "state")
        asked += model.asked
    last = Scripted()
    found = run(last, tmp_path / "state")
    assert found.rounds == expected.rounds
    assert synthetic(found.captioner) == synthetic(expected.captioner)
    lost = 3 * 6  # a part that was not finished holds at most six pictures
    assert asked + last.asked <= whole.asked + lost + 3
    idle = Scripted()
    assert run(idle, tmp_path / "state").rounds == expected.rounds
    assert idle.asked == 0


def test_more_rounds_go_on_from_the_old_ones_but_another_run_does_not(
    world: tuple[ReCap, Validation, Validation], tmp_path: Path
):
    captioner, train, validation = world
    one = augment(captioner, train, validation, metric="aclip-s", rounds=1, ks=(2, 5), state=tmp_path)
    two = augment(captioner, train, validation, metric="aclip-s", rounds=2, ks=(5, 2), state=tmp_path)
    assert two.rounds[:2] == one.rounds
    with pytest.raises(InputError, match="steps of a run with other metric"):
        augment(captioner, train, validation, metric="cider-d", rounds=2, ks=(2, 5), state=tmp_path)


def test_another_model_of_the_same_name_does_not_go_on(world: tuple[ReCap, Validation, Validation], tmp_path: Path):
    captioner, train, validation = world

    def run(fingerprint: str) -> None:
        model = Scripted()
        model.fingerprint = fingerprint  # type: ignore[attr-defined]
        twin = captioner.configured(language_model=model)
        augment(twin, train, validation, metric="aclip-s", rounds=1, ks=(2,), state=tmp_path)

    run("one")
    with pytest.raises(InputError, match="steps of a run with other language model fingerprint"):
        run("two")
    described = json.loads((tmp_path / RUN).read_text())
    assert described.pop("language model fingerprint") == "one"
    write_json(tmp_path / RUN, described)  # as older versions wrote it
    run("one")
    with pytest.raises(InputError, match="other language model fingerprint"):
        run("two")


def test_the_loop_ends_when_a_round_adds_nothing(world: tuple[ReCap, Validation, Validation]):
    captioner, train, validation = world
    found = augment(captioner, train, validation, metric="cider-d", rounds=9, ks=(2,))
    assert len(found.rounds) < 10
    assert found.rounds[-1].added == 0
    assert [r.number for r in found.rounds] == list(range(len(found.rounds)))
    sizes = np.cumsum([r.added for r in found.rounds])
    assert [r.synthetic for r in found.rounds] == sizes.tolist()


def test_scores_are_those_of_the_metrics(world: tuple[ReCap, Validation, Validation]):
    captioner, _, validation = world
    judge, encode = judge_of(captioner), captioner.encoder.encode_texts
    places = np.array([4, 0, 4, 1])
    texts = ["a red wall", "the wall is blue", "somebody painted this", "a wall"]

    def score(metric: str) -> list[float]:
        return Scorer(metric, validation, captioner.encoder, judge).score(texts, places).tolist()

    for row, (text, place) in enumerate(zip(texts, places, strict=True)):
        image, vector = validation.vectors[place][None], encode([text])
        references = encode(validation.references[place])
        first = np.array([0, len(references)])
        assert score("aclip-s")[row] == pytest.approx(float(aclip_s(image, vector, judge)[0]), abs=1e-6)
        expected = refaclip_s(image, vector, references, first, judge)
        assert score("refaclip-s")[row] == pytest.approx(float(expected[0]), abs=1e-6)
        others = [texts[row] if place == other else "wall" for other in range(len(validation))]
        assert score("cider-d")[row] == pytest.approx(cider_d(others, validation.references).per_image[place])


class Reader:
    """Stands in for spaCy: a wall, and its colour where the sentence names one."""

    def parse(self, captions: Sequence[str], *, progress: bool = False) -> list[SceneGraph]:
        return [self.graph(text.split()) for text in captions]

    def graph(self, words: list[str]) -> SceneGraph:
        colours = tuple(("wall", word) for word in words if word in COLOURS)
        return SceneGraph(("wall",) if "wall" in words or colours else (), colours, ())


def spice_by_hand(text: str, picture: str) -> float:
    """F1 against references that all say {wall, wall of the picture's colour}."""
    words = text.split()
    said = next((word for word in words if word in COLOURS), None)
    if said is None:
        return 2 / 3 if "wall" in words else 0.0
    return 1.0 if picture.startswith(said) else 0.5


def test_spice_can_be_what_captions_are_filtered_by(
    world: tuple[ReCap, Validation, Validation], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("recap.metrics.spice.default_parser", Reader)
    monkeypatch.setattr("recap.metrics.spice.default_synonyms", lambda: Synonyms({}))
    captioner, train, validation = world
    texts, places = ["a red wall", "a wall", "a red wall", "a cyan wall"], np.array([4, 0, 1, 4])
    scorer = Scorer("spice", validation, captioner.encoder, judge_of(captioner))
    expected = [spice_by_hand(text, validation.ids[place]) for text, place in zip(texts, places, strict=True)]
    assert scorer.score(texts, places).tolist() == pytest.approx(expected)
    assert len(set(expected)) == 3, "right, wrong, and without a colour"
    before, after = augment(captioner, train, validation, metric="spice", rounds=1, ks=(5,)).rounds
    assert before.score == pytest.approx(np.mean(list(map(spice_by_hand, before.captions, validation.ids))))
    # the model writes one sentence of each pattern, so the best of a picture is above the mean if that is not perfect
    assert (after.added > 0) == (before.score < 1)


def test_what_cannot_be_augmented_is_said(world: tuple[ReCap, Validation, Validation]):
    captioner, train, validation = world
    with pytest.raises(InputError, match="unknown metric to filter by 'bleu'; known: cider-d, spice"):
        augment(captioner, train, validation, metric="bleu")
    with pytest.raises(InputError, match="this captioner has none"):
        augment(captioner.configured(candidates="retrieved"), train, validation)
    with pytest.raises(InputError, match="at least one value"):
        augment(captioner, train, validation, ks=())
    with pytest.raises(InputError, match="too few"):
        augment(captioner, train, Validation((), (), validation.vectors[:0]))


def test_what_is_remembered_of_a_store_is_forgotten_when_it_grows(world: tuple[ReCap, Validation, Validation]):
    captioner, train, validation = world
    grown = augment(captioner, train, validation, metric="aclip-s", rounds=1, ks=(5,)).captioner
    twin = retrieve_only(add_cache(grown), 3)
    before = [caption.evidence for caption in twin.caption_vectors(validation.vectors)]
    store = grown.datastore
    assert isinstance(store, Datastore)
    store.remove_where(synthetic=True)
    after = [caption.evidence for caption in twin.caption_vectors(validation.vectors)]
    assert after != before
    assert after == [caption.evidence for caption in retrieve_only(grown, 3).caption_vectors(validation.vectors)]
