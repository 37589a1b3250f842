import numpy as np
import pytest
from PIL import Image

from recap.alignment import LinearAlignment
from recap.datasets.captions import CaptionsWarning
from recap.datasets.judgements import Judgements, Preferences
from recap.encoders.base import Encoder
from recap.errors import EncoderMismatchError, InputError, MissingExtraError
from recap.metrics import bleu, cider, cider_d, clip, rouge_l
from recap.metrics.clip import mid
from recap.metrics.correlation import accuracies, correlate_report, kendall_tau
from recap.metrics.evaluate import evaluate, evaluate_judgements
from recap.metrics.registry import METRICS, parse_metrics
from recap.metrics.scenegraph import SceneGraph, Synonyms
from recap.metrics.spice import soft_spice, spice

CANDIDATES = ["a red ball", "a green field of grass", "the blue sea"]
REFERENCES = [
    ["a red ball on the floor", "red toy"],
    ["green grass", "a large green field", "a meadow of grass"],
    ["a white wave in the blue sea"],
]
COLOURS = ["red", "green", "blue"]
ON_PICTURES = METRICS.names()[METRICS.names().index("clip-s") :]


@pytest.fixture(autouse=True)
def no_parser(monkeypatch) -> None:
    """Stand for an installation without what SPICE and METEOR run in."""

    def missing(*_):
        raise MissingExtraError("a scene graph", "spice")

    monkeypatch.setattr("recap.metrics.spice.default_parser", missing)
    monkeypatch.setattr("recap.metrics.scenegraph.default_parser", missing)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")


@pytest.fixture
def pictures(paint):
    return [paint(f"{colour}.png", colour) for colour in COLOURS]


def aligned(encoder: Encoder, pictures, method="ols") -> LinearAlignment:
    texts = [text for texts in REFERENCES for text in texts]
    groups = [row for row, texts in enumerate(REFERENCES) for _ in texts]
    images = encoder.encode_images(pictures)
    return LinearAlignment(method).fit(images, encoder.encode_texts(texts), groups)


def test_classic_metrics_are_those_of_their_modules():
    report = evaluate(CANDIDATES, REFERENCES, metrics="bleu,rouge,cider,cider-plain")
    expected = [*bleu(CANDIDATES, REFERENCES), rouge_l(CANDIDATES, REFERENCES)]
    expected += [cider_d(CANDIDATES, REFERENCES), cider(CANDIDATES, REFERENCES)]
    assert [row.name for row in report] == [row.name for row in expected]
    for row, other in zip(report, expected, strict=True):
        assert (row.value, row.standard_error) == (other.value, other.standard_error)
        np.testing.assert_array_equal(row.per_image, other.per_image)
    assert report.unavailable == ()
    assert report.ids == ("0", "1", "2")


def test_all_names_every_metric_with_a_value_or_a_reason(clip_like, pictures):
    report = evaluate(CANDIDATES, REFERENCES, pictures, encoder=clip_like, alignment=aligned(clip_like, pictures))
    assert len(report.rows) + len(report.unavailable) == len(METRICS.names())
    reasons = {missing.name: missing.reason for missing in report.unavailable}
    assert reasons.keys() == {"METEOR", "SPICE", "SPICE-py", "SoftSPICE", "MID"}
    assert "[spice]'" in reasons["SPICE-py"]
    assert "there is no java on this machine" in reasons["METEOR"]
    assert "references" in reasons["MID"]
    assert all(np.isfinite(row.value) for row in report)
    assert report.encoder == "toy"
    assert report.alignment == "ols on 6 pairs"


@pytest.mark.parametrize("method", ["procrustes", "ols"])
def test_metrics_on_vectors_equal_the_functions_of_clip(clip_like, pictures, method):
    alignment = aligned(clip_like, pictures, method)
    report = evaluate(CANDIDATES, REFERENCES, pictures, encoder=clip_like, alignment=alignment, metrics=ON_PICTURES)
    images = clip_like.encode_images(pictures)
    flat = [text for texts in REFERENCES for text in texts]
    first = np.cumsum([0, *map(len, REFERENCES)])
    plain, plain_references = clip_like.encode_texts(CANDIDATES), clip_like.encode_texts(flat)
    long = clip_like.encode_texts([f"A photo depicts {text}" for text in CANDIDATES])
    long_references = clip_like.encode_texts([f"A photo depicts {text}" for text in flat])
    means = alignment.image_mean_, alignment.text_mean_
    expected = {
        "CLIP-S": clip.clip_s(images, long),
        "RefCLIP-S": clip.refclip_s(images, long, long_references, first),
        "CLIP+DN": clip.clip_dn(images, plain, *means),
        "CLIP+DN-Ref": clip.clip_dn_ref(images, plain, plain_references, first, *means),
        "CLIP+DN*": clip.clip_dn(images, long, images.mean(axis=0), long_references.mean(axis=0)),
        "aCLIP-S": clip.aclip_s(images, plain, alignment),
        "RefaCLIP-S": clip.refaclip_s(images, plain, plain_references, first, alignment),
        "CLIPScore (100 cos)": clip.clip_score_100(images, plain),
    }
    for name, values in expected.items():
        np.testing.assert_allclose(report[name].per_image, values, atol=1e-5, err_msg=name)
        assert report[name].value == pytest.approx(values.mean(), abs=1e-5)
    cosine = report["aCos"].per_image
    np.testing.assert_allclose(np.maximum(cosine, 0), expected["aCLIP-S"], atol=1e-6)
    rows = alignment.transform(images), alignment.transform_texts(plain), alignment.transform_texts(plain_references)
    best = [max(rows[2][first[i] : first[i + 1]] @ rows[1][i]) for i in range(3)]
    np.testing.assert_allclose(report["RefaCos"].per_image, (cosine + best) / 2, atol=1e-6)


def test_mid_takes_references_for_true_and_candidates_for_judged(clip_like, tmp_path):
    rng = np.random.default_rng(0)
    pictures, references = [], []
    for row in range(30):
        pictures.append(tmp_path / f"{row}.png")
        Image.new("RGB", (2, 2), tuple(rng.integers(0, 256, 3).tolist())).save(pictures[-1])
        references.append([" ".join(rng.choice(["red", "green", "blue", "dog"], rng.integers(1, 6))) for _ in range(2)])
    candidates = [texts[0] for texts in references]
    report = evaluate(candidates, references, pictures, encoder=clip_like, metrics="mid")
    images = clip_like.encode_images(pictures)
    texts = clip_like.encode_texts([text for texts in references for text in texts])
    expected = mid(images, texts[::2], np.repeat(images, 2, axis=0), texts)
    np.testing.assert_allclose(report["MID"].per_image, expected.per_image)


class Words:
    """A parser that takes every word for an object."""

    def parse(self, captions, *, progress=False):
        return [SceneGraph(tuple(text.split())) for text in captions]


def test_parsed_metrics_get_candidates_references_and_index(monkeypatch, mixed):
    for module in ("spice", "scenegraph"):
        monkeypatch.setattr(f"recap.metrics.{module}.default_parser", Words)
    monkeypatch.setattr("recap.metrics.spice.default_synonyms", lambda: Synonyms({}))
    index = [1, 0, 1]
    report = evaluate(CANDIDATES, REFERENCES[:2], encoder=mixed, image_index=index, metrics="spice,softspice")
    expected = spice(CANDIDATES, REFERENCES[:2], index, parser=Words(), synonyms=Synonyms({}))
    assert 0 < report["SPICE-py"].value == expected.value
    pooled = [[word for text in texts for word in text.split()] for texts in REFERENCES]
    expected = soft_spice([text.split() for text in CANDIDATES], [pooled[image] for image in index], mixed.text)
    np.testing.assert_array_equal(report["SoftSPICE"].per_image, expected.per_image)


def test_a_part_that_fails_does_not_stop_the_others():
    report = evaluate(CANDIDATES, REFERENCES, metrics="spice,rouge-l")
    assert [row.name for row in report] == ["ROUGE-L"]
    assert "[spice]'" in report.unavailable[0].reason


def test_reasons_why_not(mixed, clip_like, pictures):
    def reason(name, *given, **options):
        report = evaluate(CANDIDATES, *given, metrics=name, **options)
        assert report.rows == ()
        return report.unavailable[0].reason

    assert reason("cider") == "needs references"
    assert reason("refclip-s", None, pictures, encoder=clip_like) == "needs references"
    assert reason("clip-s", REFERENCES, encoder=clip_like) == "needs the pictures"
    assert "needs an encoder" in reason("aclip-s", REFERENCES, pictures)
    assert "needs an alignment" in reason("aclip-s", REFERENCES, pictures, encoder=clip_like)
    assert "eyes,words share no space" in reason("clip-s", REFERENCES, pictures, encoder=mixed)
    assert "share no space" in reason("clip+dn", REFERENCES, pictures, encoder=mixed)
    assert "none of the pictures" in reason("clip-s", REFERENCES, [None] * 3, encoder=clip_like)


def test_aligned_metrics_need_no_shared_space(mixed, pictures):
    report = evaluate(
        CANDIDATES,
        REFERENCES,
        pictures,
        encoder=mixed,
        alignment=aligned(mixed, pictures),
        metrics="aclip-s,refaclip-s",
    )
    assert [row.name for row in report] == ["aCLIP-S", "RefaCLIP-S"]


def test_siglip_has_names_of_its_own(toy, pictures):
    toy.name = "open_clip:ViT-B-16-SigLIP/webli"
    encoder = Encoder(toy.name, toy, toy)
    report = evaluate(
        CANDIDATES,
        REFERENCES,
        pictures,
        encoder=encoder,
        alignment=aligned(encoder, pictures),
        metrics="asiglip-s,refaclip-s",
    )
    assert [row.name for row in report] == ["aSigLIP-S", "RefaSigLIP-S"]


def test_an_alignment_of_another_encoder_is_refused(clip_like, pictures):
    alignment = aligned(clip_like, pictures)
    alignment.text_encoder_ = "another"
    with pytest.raises(EncoderMismatchError, match="text encoder"):
        evaluate(CANDIDATES, REFERENCES, pictures, encoder=clip_like, alignment=alignment)


def test_by_id_everything_follows_the_candidates(clip_like, pictures, tmp_path):
    by_id = dict(zip(["blue", "red", "lost"], ["the blue sea", "a red ball", "a cat"], strict=True))
    references = {"red": REFERENCES[0], "green": REFERENCES[1], "blue": REFERENCES[2]}
    with pytest.warns(CaptionsWarning) as caught:
        report = evaluate(by_id, references, tmp_path, encoder=clip_like, metrics="rouge-l,clipscore-100")
    assert len(caught) == 2
    assert report.ids == ("blue", "red")
    expected = rouge_l(["the blue sea", "a red ball"], [REFERENCES[2], REFERENCES[0]])
    np.testing.assert_array_equal(report["ROUGE-L"].per_image, expected.per_image)
    mapped = evaluate(by_id, None, {"red": pictures[0]}, encoder=clip_like, metrics="clipscore-100")
    assert np.isnan(mapped.rows[0].per_image).tolist() == [True, False, True]
    assert mapped.rows[0].value == mapped.rows[0].per_image[1]
    assert mapped.problems == ("blue: no picture found", "lost: no picture found")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], []), "at least one caption"),
        (("text", []), "list of at least one caption"),
        ((["a"], [["b"], ["c"]]), "1 candidates but references of 2"),
        ((["a"], {"0": ["b"]}), "need candidates by id"),
        ((["a"], [[]]), "no reference"),
        (({"a": 3}, {"a": ["x"]}), "must be text, not 3"),
        (({"a": float("nan")}, {"a": ["x"]}), "must be text, not nan"),
        (({"a": "x"}, {"b": ["x"]}), "no image in common"),
    ],
)
def test_unusable_input_is_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        evaluate(*arguments, metrics="rouge-l")


@pytest.mark.parametrize("index", [[0], [0, -1], [0, 2]])
def test_an_index_that_fits_nothing_is_refused(index):
    with pytest.raises(InputError, match="image_index"):
        evaluate(["a", "b"], [["c"], ["d"]], image_index=index, metrics="rouge-l")


def test_names_of_metrics():
    assert parse_metrics("cider, BLEU,bleu-2") == ("cider-d", "bleu-1", "bleu-2", "bleu-3", "bleu-4")
    assert parse_metrics(["RefaSigLIP-S", "clip+dn*"]) == ("refaclip-s", "clip+dn*")
    assert parse_metrics("all") == METRICS.names()
    with pytest.raises(InputError, match=r"unknown metric 'cidr'; did you mean cider\?"):
        parse_metrics("cidr")


def test_judgements_are_scored_against_their_image():
    images = ("a", "b", "a", "c")
    captions = ("red toy", "green grass", "green grass", "the sea")
    references = dict(zip("abc", REFERENCES, strict=True))
    ratings = ((4.0, 4.0), (3.0, 4.0), (1.0, 1.0), (2.0, 3.0))
    judged = Judgements("toy", images, captions, ratings, references)
    report = evaluate_judgements(judged, metrics="rouge-l")
    expected = rouge_l(captions, [references[image] for image in images]).per_image
    np.testing.assert_array_equal(report.rows[0].per_image, expected)
    found = correlate_report(report, judged, replicates=20)[0]
    human = [rating for pair in ratings for rating in pair]
    assert found.tau_c == kendall_tau(np.repeat(expected, 2), human, "c")
    assert found.judgements == 8
    without = evaluate_judgements(Judgements("toy", images, captions, ratings, {}), metrics="rouge-l")
    assert without.unavailable[0].reason == "needs references"


def test_preferences_give_accuracies():
    pairs = Preferences(
        "toy",
        ("a", "b", "c"),
        ("red toy", "a cat", "blue sea"),
        ("a dog", "green grass", "a car"),
        ((40, 8), (3, 45), (24, 24)),
        ("HC", "MM", "MM"),
        tuple(tuple(texts) for texts in REFERENCES),
    )
    report = evaluate_judgements(pairs, metrics="rouge-l")
    found = accuracies(report, pairs)[0]
    assert (found.by_category, found.mean, found.pairs) == ({"HC": 1.0, "MM": 1.0}, 1.0, 2)
    assert accuracies(report, Preferences(**{**_fields(pairs), "votes": ((8, 40), (3, 45), (0, 48))}))[0].mean == 0.25


def _fields(pairs: Preferences) -> dict[str, object]:
    return {name: getattr(pairs, name) for name in pairs.__dataclass_fields__}


def test_metrics_of_the_users_own():
    def brevity(candidates, references):
        return [1 / len(text.split()) for text in candidates]

    def together(candidates, references):
        return sum(map(len, references)) / len(candidates)

    said, known = ["a cat", "a dog in the snow"], [["a cat"], ["a dog", "snow"]]
    report = evaluate(said, known, metrics=["rouge-l", brevity, together])
    assert [row.name for row in report.rows] == ["ROUGE-L", "brevity", "together"]
    assert report["brevity"].per_image.tolist() == [0.5, 0.2]
    assert report["brevity"].value == pytest.approx(0.35)
    assert report["together"].value == 1.5
    assert evaluate(said, metrics=brevity)["brevity"].value == pytest.approx(0.35)

    def bad(candidates, references):
        return [1.0]

    with pytest.raises(InputError, match=r"bad gave \(1,\) scores for 2 captions"):
        evaluate(said, known, metrics=bad)
