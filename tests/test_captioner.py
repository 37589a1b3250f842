import io
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from recap import LinearAlignment, PairStatistics, ReCap
from recap.datastore import Datastore, DatastoreView
from recap.encoders import Encoder, load_encoder
from recap.errors import EncoderMismatchError, ImageError, InputError, PackError, RecapWarning
from recap.language import Decoding, PromptTooLongError
from recap.metrics import evaluate
from recap.types import Draft, Pair, Prompt


class Scripted:
    """A language model that writes what it is told to, and remembers what it was asked."""

    name = "scripted"

    def __init__(self, *texts: str, completes: bool = False) -> None:
        self.texts = texts
        self.completes = completes
        self.prompts: list[Prompt] = []

    def write(self, prompts: Sequence[Prompt], decoding: Decoding) -> list[list[Draft]]:
        self.prompts += prompts
        return [[Draft(text, -1.5) for text in self.texts] for _ in prompts]


@pytest.fixture(scope="module")
def captioner(pairs: list[Pair], encoder_folder: Path) -> ReCap:
    encoder = f"onnx:{encoder_folder}"
    return ReCap.fit(pairs, encoder=encoder, language_model=None, source="walls", method="ols")


def test_the_writer_is_the_default(pairs: list[Pair], encoder_folder: Path, new_pictures: dict[str, Path]):
    captioner = ReCap.fit(pairs, encoder=f"onnx:{encoder_folder}")
    assert captioner.language_model is not None
    assert captioner.language_model.name == "writer"
    for colour, path in new_pictures.items():
        caption = captioner.caption(path)
        assert caption.selection == "likely"
        assert colour in caption.text.lower()
        written = captioner.configured(candidates="lm").caption(path)
        assert {candidate.origin for candidate in written.candidates} == {"lm"}
        assert written.text


def test_a_chosen_draft_loses_an_end_that_nothing_retrieved_supports(captioner: ReCap, new_pictures: dict[str, Path]):
    colour, path = next(iter(new_pictures.items()))
    model = Scripted(f"A {colour} wall with a zebra.")
    written = captioner.configured(language_model=model, candidates="lm", selection="likely")
    caption = written.caption(path)
    assert caption.text == f"A {colour} wall."
    first, second = caption.candidates
    assert (first.text, first.origin, first.logprob) == (caption.text, "lm", None)
    assert second.text == model.texts[0]
    query = captioner.alignment.transform(captioner.encoder.encode_images([path]))
    row = captioner.alignment.transform_texts(captioner.encoder.encode_texts([caption.text]))
    assert caption.score == first.cosine == pytest.approx(float(query[0] @ row[0]), abs=1e-6)
    for unchanged in (written.configured(selection="cosine"), written.configured(language="de")):
        assert unchanged.caption(path).text == model.texts[0]


def test_new_pictures_get_the_right_colour(captioner: ReCap, new_pictures: dict[str, Path]):
    for colour, path in new_pictures.items():
        caption = captioner.caption(path)
        assert colour in caption.text
        assert caption.evidence[0].source == "walls"
        assert caption.evidence[0].similarity >= caption.evidence[-1].similarity
        assert len(caption.evidence) == captioner.settings.k
        assert caption.selection == "consensus"
        assert caption.candidates[0].text == caption.text
        assert caption.candidates[0].origin == "retrieved"


def test_called_with_one_with_several_and_with_a_stream(
    captioner: ReCap, new_pictures: dict[str, Path], tmp_path: Path
):
    paths = list(new_pictures.values())
    wanted = [captioner.caption(path) for path in paths]
    arrays = [np.asarray(Image.open(path)) for path in paths]
    assert captioner(paths[0]) == captioner(arrays[0]) == captioner(paths[0].open("rb")) == wanted[0]
    assert captioner(paths) == captioner(arrays) == captioner(np.stack(arrays)) == wanted
    assert captioner([]) == []
    assert len(captioner(paths[0], k=2).evidence) == 2
    assert [len(caption.evidence) for caption in captioner(paths, k=2)] == [2] * len(paths)
    stream = captioner(iter([*paths, tmp_path / "absent.png"]))
    assert [next(stream) for _ in paths] == wanted
    with pytest.raises(ImageError, match="no such file"):
        next(stream)
    with pytest.raises(ImageError, match="no such file"):
        captioner([paths[0], tmp_path / "absent.png"])


def test_pictures_by_address(captioner: ReCap, new_pictures: dict[str, Path], web: tuple[Path, str]):
    folder, address = web
    shutil.copy(new_pictures["red"], folder / "a red wall.png")
    (folder / "page.html").write_text("<p>no picture</p>")
    assert captioner.caption(f"{address}/a red wall.png") == captioner.caption(new_pictures["red"])
    good, page, none = captioner.caption_each(f"{address}/{name}" for name in ("a red wall.png", "page.html", "no.png"))
    assert good == captioner.caption(new_pictures["red"])
    assert str(page) == f"{address}/page.html: not a picture but text/html"
    assert str(none) == f"{address}/no.png: the answer was 404"


def test_pairs_and_metrics_take_arrays_and_files(captioner: ReCap, pairs: list[Pair], new_pictures: dict[str, Path]):
    arrays = [(np.asarray(Image.open(str(pair.image))), pair.captions) for pair in pairs]
    files = [(io.BytesIO(Path(str(pair.image)).read_bytes()), pair.captions) for pair in pairs]
    path = new_pictures["red"]
    for given in (arrays, files):
        fitted = ReCap.fit(given, encoder=captioner.encoder, language_model=None, method="ols", calibrate=False)
        assert fitted.caption(path).text == captioner.caption(path).text
    batch = np.stack([np.asarray(Image.open(new_pictures[colour])) for colour in ("red", "blue")])
    said = ["a red wall", "a blue wall"]
    alignment, encoder = captioner.alignment, captioner.encoder
    scores = [
        evaluate(said, images=images, encoder=encoder, alignment=alignment, metrics="aclip-s").rows[0].per_image
        for images in (batch, [new_pictures["red"], new_pictures["blue"]])
    ]
    np.testing.assert_allclose(*scores, atol=1e-6)
    assert scores[0][0] != scores[0][1]


def test_retrieval_is_brute_force_in_the_aligned_space(
    captioner: ReCap, new_pictures: dict[str, Path], pairs: list[Pair]
):
    path = new_pictures["red"]
    encoder, alignment = captioner.encoder, captioner.alignment
    captions = [caption for pair in pairs for caption in pair.captions]
    query = alignment.transform(encoder.encode_images([path]))[0]
    cosines = alignment.transform_texts(encoder.encode_texts(captions)) @ query
    found = captioner.retrieve(path, k=4)
    np.testing.assert_allclose([item.similarity for item in found], np.sort(cosines)[::-1][:4], atol=1e-5)
    assert all(cosines[captions.index(item.text)] == pytest.approx(item.similarity, abs=1e-5) for item in found)


def test_the_rule_of_the_paper_takes_the_highest_cosine(captioner: ReCap, new_pictures: dict[str, Path]):
    model = Scripted("a blue wall", "a red wall", "the wall is this wall")
    configured = captioner.configured(language_model=model, candidates="lm", selection="cosine")
    caption = configured.caption(new_pictures["red"])
    assert caption.text == "a red wall"
    assert {item.text for item in caption.candidates} == set(model.texts)
    assert caption.score == max(item.cosine for item in caption.candidates)
    assert caption.candidates[0].logprob == -1.5


def test_candidates_of_the_model_and_retrieved_ones_compete(captioner: ReCap, new_pictures: dict[str, Path]):
    model = Scripted("a wall", "a red wall")
    caption = captioner.configured(language_model=model, selection="cosine").caption(new_pictures["red"])
    assert {item.origin for item in caption.candidates} == {"lm", "retrieved"}
    written = next(item for item in caption.candidates if item.text == "a red wall")
    assert written.origin == "lm"
    assert caption.score >= written.cosine


@pytest.mark.parametrize("candidates", ["lm", "both"])
def test_there_is_always_an_answer(captioner: ReCap, new_pictures: dict[str, Path], candidates: str):
    useless = Scripted("", "  ", "red red red red", "?!")
    caption = captioner.configured(language_model=useless, candidates=candidates).caption(new_pictures["red"])
    assert "red" in caption.text
    assert caption.candidates[0].origin == "retrieved"


def test_the_model_reads_k_captions_worst_first_and_the_vector(captioner: ReCap, new_pictures: dict[str, Path]):
    model = Scripted("a red wall")
    caption = captioner.configured(language_model=model, k=4).caption(new_pictures["red"])
    (prompt,) = model.prompts
    assert list(prompt.captions) == [item.text for item in reversed(caption.evidence)]
    assert prompt.text.startswith("Similar images show: ")
    assert prompt.vector is not None
    assert prompt.vector.shape == (12,)


def test_completion_models_see_worked_examples_without_their_own_captions(
    captioner: ReCap, new_pictures: dict[str, Path]
):
    model = Scripted("a red wall", completes=True)
    captioner.configured(language_model=model).caption(new_pictures["red"])
    assert len(captioner.settings.examples) == 3
    assert model.prompts[0].text.count("This image shows:") == 4


def test_own_captions_can_be_left_out(captioner: ReCap, pairs: list[Pair]):
    vectors = captioner.encoder.encode_images([pairs[0].image])
    (caption,) = captioner.caption_vectors(vectors, exclude_image_ids=[pairs[0].id])
    assert pairs[0].id not in {item.image_id for item in caption.evidence}


def test_captions_that_are_left_out_make_room_for_the_next(captioner: ReCap, new_pictures: dict[str, Path]):
    # every text is there three times, so more than the pool has to be looked through
    narrow = captioner.configured(k=4, pool=4)
    vectors = captioner.encoder.encode_images([new_pictures["red"], new_pictures["blue"]])
    before = captioner.configured(k=54).caption_vectors(vectors)[0].evidence
    gone = {item.text for item in before[:4]}
    red, blue = narrow.caption_vectors(vectors, exclude_texts=[gone, ()])
    assert red.evidence == tuple(item for item in before if item.text not in gone)[:4]
    assert red.text not in gone
    assert blue == narrow.caption_vectors(vectors[1:])[0]
    with pytest.raises(InputError, match="nothing is left"):
        narrow.caption_vectors(vectors[:1], exclude_texts=[{item.text for item in before}])


def test_a_bad_picture_does_not_stop_the_others(captioner: ReCap, new_pictures: dict[str, Path], tmp_path: Path):
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"no picture")
    results = list(captioner.caption_each([new_pictures["red"], broken, tmp_path / "gone.png", new_pictures["blue"]]))
    assert "red" in results[0].text
    assert isinstance(results[1], ImageError)
    assert "broken.jpg" in str(results[1])
    assert isinstance(results[2], ImageError)
    assert "blue" in results[3].text
    with pytest.raises(ImageError, match=r"broken\.jpg"):
        captioner.caption(broken)


def test_batches_do_not_change_captions(captioner: ReCap, new_pictures: dict[str, Path]):
    paths = list(new_pictures.values()) * 7
    together = list(captioner.caption_each(paths))
    assert together == [captioner.caption(path) for path in paths]


def test_batches_do_not_change_what_is_retrieved():
    random = np.random.default_rng(0)
    image = SimpleNamespace(name="eye", fingerprint="e", dimension=96)
    text = SimpleNamespace(name="pen", fingerprint="p", dimension=80)
    statistics = PairStatistics.zeros(96, 80, image_encoder="e", text_encoder="p")
    statistics.update(random.normal(size=(300, 96)), random.normal(size=(300, 80)))
    store = Datastore(80, encoder="pen", fingerprint="p")
    store.add([f"caption {row}" for row in range(200)], random.normal(size=(200, 80)))
    captioner = ReCap(Encoder("eye,pen", image, text), statistics, store)
    vectors = random.normal(size=(64, 96)).astype(np.float32)
    assert captioner.retrieve_vectors(vectors) == [captioner.retrieve_vectors(row[None])[0] for row in vectors]


def test_other_methods_are_solved_from_the_statistics(captioner: ReCap, pairs: list[Pair], encoder_folder: Path):
    direct = ReCap.fit(pairs, encoder=f"onnx:{encoder_folder}", method="procrustes")
    np.testing.assert_allclose(captioner.configured(method="procrustes").alignment.W_, direct.alignment.W_, atol=1e-6)
    assert captioner.alignment.method == "ols"


def test_another_method_keeps_the_other_parameters_of_the_map(captioner: ReCap):
    params = {"ridge": 0.7, "beta": 0.3, "center": False, "seed": 4}
    given = LinearAlignment.from_statistics(captioner.statistics, "ols", **params)
    made = ReCap(captioner.encoder, captioner.statistics, captioner.datastore, alignment=given)
    ridge = made.configured(method="ridge").alignment
    assert ridge.get_params() == {"method": "ridge", **params}
    assert not np.allclose(ridge.W_, captioner.configured(method="ridge").alignment.W_, atol=1e-3)
    assert not ridge.text_mean_.any()


def test_unaligned_retrieval_is_the_plain_cosine(
    pairs: list[Pair], shared_encoder_folder: Path, new_pictures: dict[str, Path]
):
    captioner = ReCap.fit(pairs, encoder=f"onnx:{shared_encoder_folder}")
    captions = [caption for pair in pairs for caption in pair.captions]
    query = captioner.encoder.encode_images([new_pictures["red"]])[0]
    cosines = captioner.encoder.encode_texts(captions) @ query
    found = captioner.retrieve(new_pictures["red"], k=5, aligned=False)
    np.testing.assert_allclose([item.similarity for item in found], np.sort(cosines)[::-1][:5], atol=1e-5)
    assert captioner.retrieve(new_pictures["red"], k=5)[0].similarity > found[0].similarity


def test_unaligned_retrieval_needs_one_space(captioner: ReCap, new_pictures: dict[str, Path]):
    with pytest.raises(InputError, match="no space that both share"):
        captioner.retrieve(new_pictures["red"], aligned=False)


def test_a_pack_comes_back_as_it_was(captioner: ReCap, new_pictures: dict[str, Path], tmp_path: Path):
    captioner.save_pretrained(tmp_path / "pack")
    again = ReCap.from_pretrained(tmp_path / "pack")
    assert again.settings == captioner.settings
    for path in new_pictures.values():
        assert again.caption(path) == captioner.caption(path)
    again.save_pretrained(tmp_path / "pack")
    assert ReCap.from_pretrained(str(tmp_path / "pack")).caption(path) == captioner.caption(path)


def test_fitting_leaves_out_what_it_cannot_read(pairs: list[Pair], encoder_folder: Path, tmp_path: Path):
    bad = Pair(tmp_path / "gone.jpg", ("a wall",), "gone")
    with pytest.warns(RecapWarning, match="1 of 19 pictures could not be read"):
        fitted = ReCap.fit([*pairs, bad], encoder=f"onnx:{encoder_folder}")
    assert len(fitted.problems) == 1
    assert "gone.jpg" in str(fitted.problems[0])
    assert fitted.statistics.pairs == 3 * len(pairs)
    with pytest.raises(InputError, match="none of the 1 pictures"):
        ReCap.fit([bad], encoder=f"onnx:{encoder_folder}")


def test_pairs_may_be_tuples(pairs: list[Pair], encoder_folder: Path, new_pictures: dict[str, Path]):
    fitted = ReCap.fit([(pair.image, list(pair.captions)) for pair in pairs], encoder=f"onnx:{encoder_folder}")
    assert "green" in fitted.caption(new_pictures["green"]).text
    with pytest.raises(InputError, match="pair 0 has an empty caption"):
        ReCap.fit([("x.jpg", " ")], encoder=f"onnx:{encoder_folder}")
    with pytest.raises(InputError, match="no pairs"):
        ReCap.fit([], encoder=f"onnx:{encoder_folder}")


def test_vectors_of_another_encoder_are_refused(captioner: ReCap, encoder_folder: Path):
    stranger = Datastore(12, encoder="other", fingerprint="f" * 64)
    stranger.add(["a wall"], np.eye(1, 12))
    with pytest.raises(EncoderMismatchError, match="datastore was made with another encoder"):
        ReCap(captioner.encoder, captioner.statistics, stranger)
    encoder = load_encoder(f"onnx:{encoder_folder}")
    empty = Datastore(12, encoder=encoder.text.name, fingerprint=encoder.text.fingerprint)
    with pytest.raises(InputError, match="empty"):
        ReCap(encoder, captioner.statistics, empty)


def test_a_map_of_another_encoder_is_refused(captioner: ReCap):
    statistics = PairStatistics.zeros(4, 12, image_encoder="c" * 64, text_encoder="d" * 64)
    random = np.random.default_rng(0)
    statistics.update(random.normal(size=(20, 4)), random.normal(size=(20, 12)))
    with pytest.raises(EncoderMismatchError, match="map was made with another encoder"):
        ReCap(captioner.encoder, statistics, captioner.datastore)


def test_a_given_map_stays_whatever_else_is_changed(captioner: ReCap, new_pictures: dict[str, Path]):
    made = ReCap(captioner.encoder, captioner.statistics, captioner.datastore, alignment=captioner.alignment)
    assert made.configured(k=3).alignment is captioner.alignment


def test_pairs_of_one_picture_are_joined(pairs: list[Pair], encoder_folder: Path):
    one_by_one = [(pair.image, caption) for pair in pairs for caption in pair.captions]
    fitted = ReCap.fit(one_by_one, encoder=f"onnx:{encoder_folder}")
    whole = ReCap.fit(pairs, encoder=f"onnx:{encoder_folder}")
    np.testing.assert_array_equal(fitted.alignment.W_, whole.alignment.W_)


@pytest.mark.parametrize(
    "bad", [{"image": "x.jpg", "caption": "y"}, "x.jpg", ("x", "y", "z"), ("x.jpg", None), ("x.jpg", [3])]
)
def test_what_is_no_pair_is_named(bad: object, encoder_folder: Path):
    with pytest.raises(InputError, match="pair 0"):
        ReCap.fit([bad], encoder=f"onnx:{encoder_folder}")


def test_several_stores_serve_as_one(captioner: ReCap, new_pictures: dict[str, Path], tmp_path: Path):
    def store(source: str, *texts: str) -> Datastore:
        text = captioner.encoder.text
        made = Datastore(text.dimension, encoder=text.name, fingerprint=text.fingerprint)
        made.add(list(texts), captioner.encoder.encode_texts(list(texts)), source=source)
        return made

    view = DatastoreView([store("one", "a red wall", "a wall"), store("two", "the wall is red", "a blue wall")])
    several = ReCap(captioner.encoder, captioner.statistics, view, settings=captioner.settings)
    caption = several.caption(new_pictures["red"])
    assert "red" in caption.text
    assert {item.source for item in caption.evidence} == {"one", "two"}
    several.save_pretrained(tmp_path / "pack")
    assert ReCap.from_pretrained(tmp_path / "pack").caption(new_pictures["red"]) == caption


def test_a_prompt_that_is_too_long_loses_its_least_similar_captions(captioner: ReCap, new_pictures: dict[str, Path]):
    class Narrow(Scripted):
        def write(self, prompts: Sequence[Prompt], decoding: Decoding) -> list[list[Draft]]:
            for prompt in prompts:
                if len(prompt.captions) > 3:
                    raise PromptTooLongError(self.name, len(prompt.captions), 3)
            return super().write(prompts, decoding)

    model = Narrow("a red wall")
    caption = captioner.configured(language_model=model, k=13, candidates="lm").caption(new_pictures["red"])
    assert caption.candidates[0].origin == "lm"
    assert [len(prompt.captions) for prompt in model.prompts] == [3]
    assert model.prompts[0].captions[-1] == caption.evidence[0].text


def test_a_pack_that_is_none_says_so(tmp_path: Path):
    with pytest.raises(PackError, match=r"has no config\.json"):
        ReCap.from_pretrained(tmp_path)
    with pytest.raises(PackError, match="no such folder"):
        ReCap.from_pretrained(tmp_path / "nowhere")


class Looking(Scripted):
    """A scripted model that reads details of a sight."""

    sights = ("first two",)


def test_a_model_that_looks_is_given_the_details(
    captioner: ReCap, detailed_encoder: Encoder, new_pictures: dict[str, Path]
):
    twin = captioner.configured()
    twin.encoder = detailed_encoder
    model, other = Looking("a red wall"), Scripted("a red wall")
    twin.configured(language_model=model).caption(new_pictures["red"])
    twin.configured(language_model=other).caption(new_pictures["red"])
    (vector,) = detailed_encoder.encode_images([new_pictures["red"]])
    assert model.prompts[0].details is not None
    assert (model.prompts[0].details.tolist(), model.prompts[0].sight) == (vector[:2].tolist(), "first two")
    assert other.prompts[0].details is None
    assert model.prompts[0].vector == pytest.approx(other.prompts[0].vector)
    looking = twin.configured(language_model=model)
    rows = np.stack([row for row in looking.encode_each(new_pictures.values()) if not isinstance(row, ImageError)])
    assert looking.vectors_of(rows).shape[1] == captioner.encoder.image.dimension == rows.shape[1] - 2
    assert looking.retrieve_vectors(rows[:1]) == captioner.retrieve_vectors(looking.vectors_of(rows[:1]))
    looking.caption_vectors(looking.vectors_of(rows))
    assert model.prompts[-1].details is None
    rows[1, -2:] = np.nan
    looking.caption_vectors(rows[:3])
    assert [prompt.details is None for prompt in model.prompts[-3:]] == [False, True, False]
