import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy.optimize import minimize
from scipy.special import expit

from recap import ReCap
from recap.confidence import (
    DEPTH,
    FEATURES,
    Calibration,
    calibration_error,
    check_minimum,
    features,
    fit_logistic,
    is_trusted,
    withheld_below,
)
from recap.datasets import PairFiles
from recap.encoders import Encoder
from recap.errors import InputError, PackError, RecapWarning
from recap.fitting.confidence import Judge, KnownPictures, fit_calibration, own_rows
from recap.fitting.embedding import embed
from recap.fitting.vectors import VectorFolder
from recap.language import Decoding
from recap.packs.builtin import packaged_file
from recap.packs.folder import CONFIDENCE
from recap.parallel.parts import find_parts
from recap.selection import RULES, Proposals, by_consensus
from recap.types import Caption, Draft, Evidence, Pair, Prompt

EVIDENCE = tuple(
    Evidence(text, similarity)
    for text, similarity in (
        ("a dog runs on grass", 0.5),
        ("a dog plays on grass", 0.45),
        ("a brown dog on a field", 0.4),
        ("a man rides a horse", 0.3),
    )
)


@pytest.fixture(scope="module")
def many(pairs: list[Pair], new_pictures: dict[str, Path]) -> list[Pair]:
    """Six pictures of each colour, no two the same."""
    random = np.random.default_rng(5)
    made = []
    for colour, path in new_pictures.items():
        captions = next(pair.captions for pair in pairs if pair.id.startswith(colour))
        for number in range(6):
            pixels = np.asarray(Image.open(path), dtype=np.float64) + random.normal(0, 20, 3)
            picture = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
            made.append(Pair(picture, captions, f"{colour}-{number}"))
    return made


@pytest.fixture(scope="module")
def captioner(many: list[Pair], encoder_folder: Path) -> ReCap:
    fitted = ReCap.fit(many, encoder=f"onnx:{encoder_folder}", language_model=None, method="ols")
    fitted.calibration = fit_calibration(fitted, many)
    return fitted


def test_features_are_what_they_are_called():
    texts = ["a dog runs on grass", "a red bus"]
    rows = dict(zip(FEATURES, features(texts, [0.5, 0.1], EVIDENCE).T, strict=True))
    np.testing.assert_allclose(rows["cosine"], [0.5, 0.1])
    np.testing.assert_allclose(rows["nearest"], 0.5)
    np.testing.assert_allclose(rows["spread"], 0.5 - (0.5 + 0.45 + 0.4 + 0.3) / 4)
    nothing = np.zeros(0, np.float32)
    np.testing.assert_allclose(rows["support"], by_consensus(texts, nothing, EVIDENCE))
    among = by_consensus([item.text for item in EVIDENCE], nothing, EVIDENCE)
    np.testing.assert_allclose(rows["agreement"], among.mean())
    assert rows["support"][0] > rows["support"][1]
    assert rows["words"].tolist() == [5, 3]
    assert rows["things"].tolist() == [1, 1]  # grass is none of COCO's kinds of objects


def test_a_caption_does_not_support_itself():
    alone = (Evidence("a dog", 0.5), Evidence("some tall ship", 0.4))
    assert features(["a dog"], [0.5], alone)[0, FEATURES.index("support")] == 0
    twice = (*alone, Evidence("a dog", 0.5))
    assert features(["a dog"], [0.5], twice)[0, FEATURES.index("support")] > 0.3


def test_features_do_not_depend_on_how_much_was_retrieved_or_asked_at_once():
    many = tuple(Evidence(f"a dog number {i} of them", 0.5 - i / 1000) for i in range(3 * DEPTH))
    texts = ["a dog", "a dog number 3 of them", "ships"]
    together = features(texts, [0.1, 0.2, 0.3], many)
    np.testing.assert_allclose(together, features(texts, [0.1, 0.2, 0.3], many[:DEPTH]))
    np.testing.assert_allclose(together[1:2], features(texts[1:2], [0.2], many), atol=1e-12)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 5), st.floats(0.1, 30), st.booleans())
def test_the_regression_is_the_minimum_of_its_loss(seed: int, columns: int, ridge: float, weighted: bool):
    random = np.random.default_rng(seed)
    rows = random.normal(random.normal(size=columns), 10.0 ** random.integers(-3, 3, columns), (60, columns))
    shares = random.integers(0, 4, 60) / 3
    weights = random.uniform(0.1, 3, 60) if weighted else np.ones(60)
    mean = np.average(rows, axis=0, weights=weights)
    scale = np.sqrt(np.average((rows - mean) ** 2, axis=0, weights=weights))

    def loss(solution: np.ndarray) -> float:
        logits = solution[0] + (rows - mean) / scale @ solution[1:]
        return weights @ (np.logaddexp(0, logits) - shares * logits) + ridge * solution[1:] @ solution[1:] / 2

    best = minimize(loss, np.zeros(columns + 1), method="BFGS", options={"gtol": 1e-8})
    intercept, slopes = fit_logistic(rows, shares, weights if weighted else None, ridge=ridge)
    np.testing.assert_allclose(slopes * scale, best.x[1:], atol=1e-4)
    assert intercept + slopes @ mean == pytest.approx(best.x[0], abs=1e-4)


@settings(max_examples=15, deadline=None)
@given(
    st.integers(0, 10**6),
    st.lists(st.floats(-2, 2), min_size=len(FEATURES), max_size=len(FEATURES)),
    st.floats(-2, 2),
    st.integers(1, 3),
)
def test_a_known_truth_is_found_again(seed: int, truth: list[float], intercept: float, raters: int):
    random = np.random.default_rng(seed)
    rows = random.normal(size=(8000, len(FEATURES)))
    probability = expit(intercept + rows @ truth)
    right = random.binomial(raters, probability) / raters
    fitted = Calibration.fit(rows[:4000], right[:4000], method="ols", pictures=1, labels="made up")
    predicted = fitted.probabilities(rows[4000:])
    assert np.abs(predicted - probability[4000:]).mean() < 0.03
    assert calibration_error(predicted, right[4000:]) < 0.05


def test_rows_without_difference_or_doubt_are_survived():
    rows = np.column_stack([np.ones(30), np.arange(30.0)])
    intercept, slopes = fit_logistic(rows, np.ones(30))
    assert np.isfinite([intercept, *slopes]).all()
    assert expit(intercept + rows @ slopes).min() > 0.99
    _, separable = fit_logistic(rows, (rows[:, 1] > 15).astype(float))
    assert separable[0] == 0
    assert 0 < separable[1] < 10


def test_calibration_error_of_what_can_be_computed_by_hand():
    confidence = np.repeat([0.1, 0.9], 50)
    right = np.concatenate([np.repeat([1.0, 0.0], [5, 45]), np.repeat([1.0, 0.0], [35, 15])])
    assert calibration_error(confidence, right, bins=2) == pytest.approx(0.1)
    assert calibration_error(confidence, confidence) == 0
    sure = np.array([0.05, 0.05, 0.05, 1.0])
    assert calibration_error(sure, np.array([0, 0, 1, 1.0]), equal_width=True) == pytest.approx((1 - 0.15) / 4)


def test_the_packaged_numbers_make_sense():
    calibration = Calibration.load(packaged_file(CONFIDENCE))
    good, bad = features(["a dog on grass", "a red bus"], [0.6, 0.0], EVIDENCE)
    assert calibration.probabilities(good[None])[0] > 0.5 > 0.1 > calibration.probabilities(bad[None])[0]
    judge = Judge.packaged()
    nothing, human = judge.probabilities(np.array([0.0, 1.0]))
    assert nothing < 0.02
    assert human > 0.8


def test_captions_are_confident_where_they_should_be(captioner: ReCap, new_pictures: dict[str, Path]):
    for colour, path in new_pictures.items():
        caption = captioner.caption(path)
        assert caption.confidence is not None
        assert colour in caption.text
        assert caption.as_dict()["confidence"] == caption.confidence
        wrong = next(other for other in new_pictures if other != colour)
        assert captioner.calibration is not None
        doubtful = captioner.calibration.confidence(f"a {wrong} wall", -0.5, caption.evidence)
        assert doubtful < caption.confidence


def test_another_map_has_no_confidence(captioner: ReCap, new_pictures: dict[str, Path]):
    caption = captioner.caption(new_pictures["red"], method="procrustes")
    assert caption.confidence is None
    with pytest.raises(InputError, match="no calibration"):
        is_trusted(caption, 0.5)


def test_a_pack_keeps_its_calibration(captioner: ReCap, new_pictures: dict[str, Path], tmp_path: Path):
    captioner.save_pretrained(tmp_path / "pack")
    again = ReCap.from_pretrained(tmp_path / "pack")
    assert again.calibration == captioner.calibration
    assert again.caption(new_pictures["red"]) == captioner.caption(new_pictures["red"])
    again.calibration = None
    again.save_pretrained(tmp_path / "pack")
    assert not (tmp_path / "pack" / CONFIDENCE).exists()
    assert ReCap.from_pretrained(tmp_path / "pack").caption(new_pictures["red"]).confidence is None


def test_the_map_is_solved_without_the_pictures_it_is_tested_on(
    captioner: ReCap, many: list[Pair], monkeypatch: pytest.MonkeyPatch
):
    seen = []

    def note(twin: ReCap, part: KnownPictures) -> tuple[np.ndarray, np.ndarray]:
        seen.append((twin.alignment, part))
        return own_rows(twin, part)

    monkeypatch.setattr("recap.fitting.confidence.own_rows", note)
    fit_calibration(captioner, many)
    assert len(seen) == 5
    assert sorted(name for _, part in seen for name in part.ids) == sorted(pair.id for pair in many)
    for alignment, part in seen:
        rest = [pair for pair in many if pair.id not in part.ids]
        other = ReCap.fit(rest, encoder=captioner.encoder, language_model=None, method="ols", calibrate=False)
        np.testing.assert_allclose(alignment.W_, other.alignment.W_, atol=1e-4)


def test_captions_of_a_picture_are_not_evidence_for_it(
    captioner: ReCap, many: list[Pair], monkeypatch: pytest.MonkeyPatch
):
    proposed: list[tuple[str, Proposals]] = []
    original = ReCap.propose

    def note(self: ReCap, vectors: np.ndarray, *, exclude_image_ids: Sequence[str]) -> list[Proposals]:
        found = original(self, vectors, exclude_image_ids=exclude_image_ids)
        proposed.extend(zip(exclude_image_ids, found, strict=True))
        return found

    monkeypatch.setattr(ReCap, "propose", note)
    fit_calibration(captioner, many)
    assert sorted(name for name, _ in proposed) == sorted(pair.id for pair in many)
    for name, proposals in proposed:
        assert name not in {item.image_id for item in proposals.evidence}


class Writer:
    """A language model that finds one sentence likely and the others not."""

    name, completes = "writer of walls", False

    def write(self, prompts: Sequence[Prompt], decoding: Decoding) -> list[list[Draft]]:
        drafts = [Draft("this wall", -0.1), Draft("somebody painted", -40.0), Draft("a red wall", -30.0)]
        return [drafts for _ in prompts]


@pytest.mark.parametrize("selection", RULES.names())
def test_what_the_captioner_says_is_among_what_is_fitted(captioner: ReCap, many: list[Pair], selection: str):
    configured = captioner.configured(language_model=Writer(), selection=selection)
    ids = [pair.id for pair in many]
    images = configured.encoder.encode_images([pair.image for pair in many])
    known = KnownPictures.of(configured.encoder, ids, [pair.captions for pair in many], images)
    rows = own_rows(configured, known)[0].reshape(len(many), -1, len(FEATURES))
    said = configured.caption_vectors(images, exclude_image_ids=ids)
    proposed = configured.propose(images, exclude_image_ids=ids)
    for fitted, caption, proposals in zip(rows, said, proposed, strict=True):
        own = features([caption.text], [caption.score], proposals.evidence)
        assert np.isclose(fitted, own).all(1).any()


def test_the_language_model_is_asked_about_some_pictures_for_one_sentence(
    captioner: ReCap, many: list[Pair], monkeypatch: pytest.MonkeyPatch
):
    asked: list[tuple[bytes, Decoding]] = []

    class Noting(Writer):
        def write(self, prompts: Sequence[Prompt], decoding: Decoding) -> list[list[Draft]]:
            asked.extend((prompt.vector.tobytes(), decoding) for prompt in prompts if prompt.vector is not None)
            return super().write(prompts, decoding)

    monkeypatch.setattr("recap.fitting.confidence.WRITTEN", 10)
    writing = captioner.configured(language_model=Noting())
    calibration = fit_calibration(writing, many)
    assert len(asked) == len({vector for vector, _ in asked}) == 10 < len(many)
    assert {decoding.temperature for _, decoding in asked} == {0}
    assert calibration != fit_calibration(captioner, many), "what it writes counts"
    asked.clear()
    assert fit_calibration(writing.configured(candidates="retrieved"), many) == fit_calibration(captioner, many)
    assert not asked


def test_pairs_that_were_not_fitted_are_not_withdrawn(captioner: ReCap, many: list[Pair]):
    strangers = [Pair(pair.image, pair.captions, f"stranger-{pair.id}") for pair in many]
    changed = [Pair(pair.image, pair.captions[:2], pair.id) for pair in many[:3]]
    mixed = [*strangers, *changed, *many[3:]]
    assert fit_calibration(captioner, mixed).pictures == len(many) - 3
    assert fit_calibration(captioner, strangers, fitted=False).pictures == len(many)
    assert fit_calibration(captioner, many, pictures=25).pictures == 25


def test_pictures_with_one_caption_need_the_encoder_of_the_judge(captioner: ReCap, many: list[Pair]):
    single = [Pair(pair.image, pair.captions[:1], pair.id) for pair in many]
    with pytest.raises(InputError, match="two captions or more"):
        fit_calibration(captioner, single, fitted=False)
    judge = Judge(-5, 7, 0.5, captioner.encoder.text.fingerprint)
    assert fit_calibration(captioner, single, fitted=False, judge=judge).pictures == len(single)


def test_a_handful_of_pictures_is_too_few(captioner: ReCap, many: list[Pair]):
    with pytest.raises(InputError, match="at least 20 pictures"):
        fit_calibration(captioner, many[:5])
    strangers = [Pair(pair.image, pair.captions, f"stranger-{pair.id}") for pair in many]
    with pytest.raises(InputError, match="at least 20 pictures"):
        fit_calibration(captioner, strangers)


def test_a_pack_is_calibrated_on_the_files_it_was_fitted_on(
    many: list[Pair], encoder_folder: Path, new_pictures: dict[str, Path], tmp_path: Path
):
    for pair in many:
        assert isinstance(pair.image, Image.Image)
        pair.image.save(tmp_path / f"{pair.id}.png")
        (tmp_path / f"{pair.id}.txt").write_text("\n".join(pair.captions))
    (tmp_path / "broken.png").write_bytes(b"no picture")
    (tmp_path / "broken.txt").write_text("a wall")
    encoder = f"onnx:{encoder_folder}"
    with pytest.warns(RecapWarning, match="1 of 37 pictures"):
        fitted = ReCap.fit(PairFiles(tmp_path), encoder=encoder, language_model=None, method="ols", validation=0.2)
    apart = fitted.report.validation
    assert apart > 0
    # the held-out pictures and the broken one are not used
    assert fitted.calibration is not None
    assert fitted.calibration.pictures == len(many) - apart
    assert fit_calibration(fitted, PairFiles(tmp_path)) == fitted.calibration
    assert fitted.caption(new_pictures["red"]).confidence is not None


def test_too_few_pictures_are_a_warning_when_a_pack_is_made(many: list[Pair], encoder_folder: Path):
    with pytest.warns(RecapWarning, match="will have no confidence: confidence needs at least 20 pictures"):
        fitted = ReCap.fit(many[::8], encoder=f"onnx:{encoder_folder}", language_model=None)
    assert fitted.calibration is None


def test_a_fit_is_calibrated_unless_told_not_to_be(many: list[Pair], encoder_folder: Path):
    options: dict[str, Any] = {"encoder": f"onnx:{encoder_folder}", "language_model": None, "method": "ols"}
    fitted = ReCap.fit(many, **options)
    assert fitted.calibration == fit_calibration(fitted, many)
    assert ReCap.fit(many, calibrate=False, **options).calibration is None


def test_the_pictures_with_the_smallest_hashes_are_used(
    captioner: ReCap, many: list[Pair], encoder_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    used: list[tuple[str, ...]] = []
    monkeypatch.setattr("recap.fitting.confidence.calibrate", lambda captioner, known, **_: used.append(known.ids))
    monkeypatch.setattr("recap.fitting.pairs.SAMPLE", 25)
    assert captioner.pictures is not None
    smallest = {picture.id for picture in sorted(captioner.pictures, key=lambda p: p.sha256)[:25]}
    ReCap.fit(many, encoder=f"onnx:{encoder_folder}", language_model=None, method="ols")
    ReCap.fit(many, encoder=f"onnx:{encoder_folder}", language_model=None, method="ols", keep_vectors=True)
    fit_calibration(captioner, many[::-1], pictures=25)
    assert [set(ids) for ids in used] == [smallest] * 3


def test_an_update_calibrates_anew_or_drops_what_is_stale(many: list[Pair], encoder_folder: Path):
    def fit(**options: Any) -> ReCap:
        return ReCap.fit(many[::2], encoder=f"onnx:{encoder_folder}", language_model=None, method="ols", **options)

    known = fit(keep_vectors=True, calibrate=False)
    known.update(many[1::2])
    assert known.calibration is not None
    assert known.calibration.pictures == len(many)  # the pack keeps vectors: the old ones count, too
    stale = Calibration(0.0, (1.0,) * len(FEATURES), "ols", 20, "made up")
    for calibrate, message in ((True, "no confidence: .*at least 20 pictures"), (False, "pack as it was before")):
        captioner = fit(calibrate=False)
        captioner.calibration = stale
        with pytest.warns(RecapWarning, match=message):
            captioner.update(many[1:9:2], calibrate=calibrate)
        assert captioner.calibration is None


def test_what_is_forgotten_takes_the_confidence_along(many: list[Pair], encoder_folder: Path):
    options: dict[str, Any] = {"encoder": f"onnx:{encoder_folder}", "language_model": None, "method": "ols"}
    captioner = ReCap.fit(many, keep_vectors=True, **options)
    with pytest.warns(RecapWarning, match="fitted on these pictures, too: captions have no confidence until"):
        captioner.forget([many[0].id])
    assert captioner.calibration is None
    expected = ReCap.fit(many[1:], **options).calibration
    assert expected is not None
    found = fit_calibration(captioner)
    assert found.pictures == expected.pictures == len(many) - 1
    np.testing.assert_allclose(found.weights, expected.weights, rtol=0.02)


def test_a_pack_without_vectors_needs_pairs(captioner: ReCap):
    with pytest.raises(InputError, match="keeps no image vectors"):
        fit_calibration(captioner)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"calibration": 3}', '{"calibration": {"weights": {"x": 1}}}'])
def test_a_damaged_file_is_named(tmp_path: Path, content: str):
    path = tmp_path / CONFIDENCE
    path.write_text(content)
    with pytest.raises(PackError, match=r"confidence\.json"):
        Calibration.load(path)


def test_a_calibration_of_an_earlier_pack_counts_what_it_knows(tmp_path: Path):
    Calibration(-1.5, tuple(range(len(FEATURES))), "ols", 12, "made up").save(tmp_path / CONFIDENCE)
    content = json.loads((tmp_path / CONFIDENCE).read_text())
    for later in ("words", "things"):
        del content["calibration"]["weights"][later]
    (tmp_path / CONFIDENCE).write_text(json.dumps(content))
    assert Calibration.load(tmp_path / CONFIDENCE).weights == (0, 1, 2, 3, 4, 0, 0)
    del content["calibration"]["weights"]["nearest"]
    (tmp_path / CONFIDENCE).write_text(json.dumps(content))
    with pytest.raises(PackError, match="not those of this version"):
        Calibration.load(tmp_path / CONFIDENCE)


def test_a_file_comes_back(tmp_path: Path):
    made = Calibration(-1.5, tuple(range(len(FEATURES))), "ols", 12, "made up")
    made.save(tmp_path / CONFIDENCE)
    assert Calibration.load(tmp_path / CONFIDENCE) == made
    assert json.loads((tmp_path / CONFIDENCE).read_text())["calibration"]["weights"]["nearest"] == 1


@settings(deadline=None)
@given(st.floats(0, 1), st.floats(0, 1))
def test_trust(confidence: float, minimum: float):
    caption = Caption("a dog", 0.4, (), (), "consensus", confidence)
    assert is_trusted(caption, minimum) == (confidence >= minimum)


@settings(deadline=None)
@given(st.floats(0, 1), st.floats(0, 1))
def test_what_is_not_trusted_is_withheld(confidence: float, minimum: float):
    caption = Caption("a dog", 0.4, (), (), "consensus", confidence)
    values = withheld_below(caption, minimum)
    shown = confidence >= minimum
    assert (values["caption"], values["withheld"]) == (("a dog", None) if shown else (None, "a dog"))
    assert values["abstained"] is not shown
    assert {name: values[name] for name in caption.as_dict() if name != "caption"} == {
        name: value for name, value in caption.as_dict().items() if name != "caption"
    }
    json.dumps(values)


def test_a_minimum_needs_a_calibration_of_the_same_map():
    calibration = Calibration(0.0, (1.0,) * len(FEATURES), "ols", 20, "made up")
    check_minimum(0.5, calibration, "ols")
    for minimum, known, method, message in (
        (1.5, calibration, "ols", "between 0 and 1"),
        (float("nan"), calibration, "ols", "between 0 and 1"),
        (0.5, None, "ols", "has no calibration"),
        (0.5, calibration, "procrustes", "calibrated for the map ols"),
    ):
        with pytest.raises(InputError, match=message):
            check_minimum(minimum, known, method)


class Looking(Writer):
    """A model that reads details of the pictures, and notes them."""

    sights = ("first two",)

    def __init__(self) -> None:
        self.seen: list[bool] = []

    def write(self, prompts: Sequence[Prompt], decoding: Decoding) -> list[list[Draft]]:
        self.seen += [prompt.details is not None for prompt in prompts]
        return super().write(prompts, decoding)


@pytest.mark.parametrize("kind", ["memory", "files", "bucket"])
def test_a_model_that_looks_is_calibrated_on_what_it_sees(
    many: list[Pair], detailed_encoder: Encoder, tmp_path: Path, kind: str
):
    encoder, model = detailed_encoder, Looking()
    pairs: Any = many
    if kind != "memory":
        folder = tmp_path / "pairs"
        folder.mkdir()
        for pair in many:
            pair.image.save(folder / f"{pair.id}.png")  # type: ignore[union-attr]
            (folder / f"{pair.id}.txt").write_text("\n".join(pair.captions))
        pairs = folder
    if kind == "bucket":
        embed(find_parts(f"file://{folder}", size=9), str(tmp_path / "vectors"), encoder)
        pairs = VectorFolder(str(tmp_path / "vectors"))
    fitted = ReCap.fit(pairs, encoder=encoder, language_model=model, method="ols", keep_vectors=True)
    assert fitted.calibration is not None
    assert fitted.calibration.pictures == len(many)
    assert model.seen
    assert all(model.seen)
    with pytest.raises(InputError, match="looks at the pictures themselves"):
        fit_calibration(fitted)
