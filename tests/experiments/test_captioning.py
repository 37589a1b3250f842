"""The captioning table, the correlation of metrics and the examples on a tiny data set in the shape of Flickr8k."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from recap.captioner import ReCap
from recap.datasets import read_flickr8k
from recap.errors import InputError
from recap.experiments import Setup, run_experiment
from recap.experiments.data import Bench, Split
from recap.experiments.efficiency import measured_recap
from recap.experiments.study import Study, caption_settings, judged_note, points, score_systems
from recap.experiments.table import Row, Table
from recap.language import Decoding
from recap.language.writer import WriterModel
from recap.metrics import aclip_s, bleu, cider_d, evaluate
from recap.metrics.corpus import MetricResult
from recap.packs.settings import Settings
from recap.types import Draft, Pair, Prompt

pytestmark = pytest.mark.usefixtures("own_cache")
METRICS = "bleu-1,bleu-4,rouge-l,cider-d,clip-s,aclip-s,refaclip-s,mid"


def make_setup(data: Path, encoder: Path, model: str = "none", **options: str) -> Setup:
    return bare_setup(data, encoder, model, **{"metrics": METRICS, **options})


def bare_setup(data: Path, encoder: Path, model: str = "none", **options: str) -> Setup:
    return Setup(data, encoder=f"onnx:{encoder}", language_model=model, options=options)


def rows(table: Table) -> dict[str, Row]:
    return {row.label: row for row in table.sections[0].rows}


def values(row: Row) -> list[object]:
    return [cell.value for cell in row.cells]


def results_file(folder: Path, captions: Sequence[tuple[str, str]]) -> Path:
    path = folder / "results.json"
    path.write_text(json.dumps([{"image_id": image, "caption": text} for image, text in captions]))
    return path


def test_other_systems_stand_beside_ours_with_the_values_of_the_metrics(
    data: Path, encoder_folder: Path, tmp_path: Path
) -> None:
    test = read_flickr8k(data / "flickr8k", "test")
    wrong = [test[(place + 1) % len(test)].captions[1] for place in range(len(test))]
    file = results_file(tmp_path, [(pair.id, text) for pair, text in zip(test, wrong, strict=True)][::-1])
    setup = make_setup(data, encoder_folder, results=f"Astray={file}")
    table = run_experiment("captioning", setup).tables["captioning"]
    place = {column.name: number for number, column in enumerate(table.columns)}
    found = rows(table)
    assert list(found)[:2] == ["consensus, UM", "nearest, IT"]
    assert list(found)[-1] == "Astray"
    references = [pair.captions for pair in test]
    cider, first = cider_d(wrong, references), bleu(wrong, references)[0]
    assert found["Astray"].cells[place["CIDEr-D"]].value == pytest.approx(100 * cider.value)
    assert found["Astray"].cells[place["CIDEr-D"]].error == pytest.approx(100 * cider.standard_error)
    assert found["Astray"].cells[place["BLEU-1"]].value == pytest.approx(100 * first.value)
    # what recap says names the right colour: no system that errs everywhere is near it
    best = found["consensus, OLS"].cells
    for name in ("CIDEr-D", "aCLIP-S", "RefaCLIP-S"):
        assert best[place[name]].value > found["Astray"].cells[place[name]].value + 5


def test_metrics_that_cannot_be_had_are_empty_and_explained(data: Path, encoder_folder: Path) -> None:
    table = run_experiment("captioning", make_setup(data, encoder_folder)).tables["captioning"]
    names = [column.name for column in table.columns]
    assert "CLIP-S" in names  # the paper has it
    assert "MID" not in names  # nobody has it
    assert all(row.cells[names.index("CLIP-S")].value is None for row in table.sections[0].rows)
    assert any("CLIP-S" in note and "share no space" in note for note in table.notes)
    assert any("MID" in note and "score more images" in note for note in table.notes)
    assert [section.title[:17] for section in table.sections[1:]] == ["the paper: MS-COC", "the paper: Flickr"]


def test_a_shared_space_brings_clip_s_and_the_maps_that_need_it(data: Path, shared_encoder_folder: Path) -> None:
    table = run_experiment("captioning", make_setup(data, shared_encoder_folder)).tables["captioning"]
    place = [column.name for column in table.columns].index("CLIP-S")
    found = rows(table)
    assert {"nearest, ZS", "nearest, beta-PR"} <= found.keys()
    assert all(row.cells[place].value is not None for row in found.values())


def test_the_writer_writes_with_every_map_and_the_same_every_time(data: Path, encoder_folder: Path) -> None:
    setup = make_setup(data, encoder_folder, "writer", pictures="3")
    one, other = (run_experiment("captioning", setup).tables["captioning"].to_text() for _ in range(2))
    assert one == other
    assert "3 pictures" in one
    labels = [line.split("  ")[0] for line in one.splitlines()]
    for label in ("UM", "IT", "LFA", "PR", "OLS", "ridge"):
        assert f"ReCap, {label}" in labels
    assert {"nearest, PR", "consensus, OLS"} <= {*labels}
    assert "nearest, IT" not in labels


def test_some_maps_only(data: Path, encoder_folder: Path) -> None:
    table = run_experiment("captioning", make_setup(data, encoder_folder, maps="OLS, PR")).tables["captioning"]
    wanted = ["consensus, UM", *(f"{way}, {name}" for way in ("nearest", "consensus") for name in ("PR", "OLS"))]
    assert list(rows(table)) == wanted
    with pytest.raises(InputError, match=r"unknown map 'pr'; did you mean PR\? known: ZS, IT"):
        run_experiment("captioning", make_setup(data, encoder_folder, maps="pr"))


def test_an_option_that_an_experiment_does_not_have_is_refused(data: Path, encoder_folder: Path) -> None:
    setup = bare_setup(data, encoder_folder, mapps="PR")
    with pytest.raises(InputError, match="retrieval has no option 'mapps'; it has maps"):
        run_experiment("retrieval", setup)


def test_captions_are_made_as_in_the_paper_where_that_is_asked_for(data: Path, encoder_folder: Path) -> None:
    setup = make_setup(data, encoder_folder, "writer", settings="paper", maps="PR", metrics="cider-d")
    notes = run_experiment("captioning", setup).tables["captioning"].notes
    assert "Captions: map of the row, selection rule cosine, temperature 0.3, samples 20, k 18." in notes


def test_settings_are_a_packs_for_the_writer_and_the_papers_for_others(data: Path) -> None:
    writer, other = WriterModel(), SimpleNamespace(name="hf:google/flan-t5-large")
    assert caption_settings(Setup(data, seed=3), writer) == Settings().but(seed=3)
    assert caption_settings(Setup(data), None) == Settings()
    paper = Settings(method="ols", candidates="lm", selection="cosine", k=13, pool=13)
    paper = paper.but(temperature=0.1, samples=10)
    assert caption_settings(Setup(data, on="coco"), other) == paper
    assert caption_settings(Setup(data, on="coco", options={"settings": "pack"}), other) == Settings()
    changed = {"k": "4", "temperature": "0.7", "samples": "2", "selection": "consensus"}
    wanted = paper.but(k=4, pool=4, temperature=0.7, samples=2, selection="consensus")
    assert caption_settings(Setup(data, on="coco", options=changed), other) == wanted
    with pytest.raises(InputError, match="expected pack or paper"):
        caption_settings(Setup(data, options={"settings": "mine"}), writer)


def test_results_that_do_not_fit_are_refused(data: Path, encoder_folder: Path, tmp_path: Path) -> None:
    file = results_file(tmp_path, [("red2.png", "a red wall")])
    with pytest.raises(InputError, match=r"no caption for 5 of 6 test pictures, such as \w+2.png"):
        run_experiment("captioning", make_setup(data, encoder_folder, results=f"A={file}"))
    with pytest.raises(InputError, match="expected NAME=FILE"):
        run_experiment("captioning", make_setup(data, encoder_folder, results=str(file)))
    whole = results_file(tmp_path, [(pair.id, "a wall") for pair in read_flickr8k(data / "flickr8k", "test")])
    with pytest.raises(InputError, match="two systems are called A"):
        run_experiment("captioning", make_setup(data, encoder_folder, results=f"A={whole},A={whole}"))
    with pytest.raises(InputError, match="pictures=many"):
        run_experiment("captioning", make_setup(data, encoder_folder, pictures="many"))


def test_scores_from_vectors_are_those_from_pictures(data: Path, encoder_folder: Path) -> None:
    bench = Bench(make_setup(data, encoder_folder))
    train, test = bench.load("flickr8k", "train"), bench.load("flickr8k", "test")
    captions = [texts[0] for texts in test.captions]
    metrics = ("bleu-4", "cider-d", "aclip-s", "refaclip-s")
    judge = train.fit("procrustes")
    ours = score_systems(bench, test, {"a": captions, "b": captions[::-1]}, metrics)
    given = {"encoder": bench.encoder, "alignment": judge, "metrics": metrics}
    for name, texts in (("a", captions), ("b", captions[::-1])):
        theirs = evaluate(texts, test.captions, test.pictures, **given)
        for row in theirs:
            np.testing.assert_allclose(ours[name][row.name].per_image, row.per_image)


def procrustes_by_hand(train: Split) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """Return the aligned cosine of rows in pairs as the paper defines it, with numpy alone."""
    images, texts = train.images[train.owners].astype(np.float64), train.texts.astype(np.float64)
    centre, middle = images.mean(axis=0), texts.mean(axis=0)
    u, _, vt = np.linalg.svd((texts - middle).T @ (images - centre), full_matrices=False)

    def cosine(image: np.ndarray, text: np.ndarray) -> np.ndarray:
        mapped, centred = (image - centre) @ (u @ vt).T, text - middle
        return (mapped * centred).sum(1) / np.linalg.norm(mapped, axis=1) / np.linalg.norm(centred, axis=1)

    return cosine


def test_aclip_s_is_judged_by_procrustes_and_by_another_encoder_where_asked(
    data: Path, encoder_folder: Path, shared_encoder_folder: Path
) -> None:
    setup = bare_setup(data, encoder_folder)
    other = replace(setup, judge_encoder=f"onnx:{shared_encoder_folder}")
    bench = Bench(setup)
    test = bench.load("flickr8k", "test")
    wrong = [texts[0] for texts in (*test.captions[1:], test.captions[0])]
    for judge in (bench, Bench(replace(setup, encoder=other.judge_encoder))):
        seen, texts = judge.load("flickr8k", "test").images, judge.encoder.encode_texts(wrong)
        expected = np.maximum(procrustes_by_hand(judge.load("flickr8k", "train"))(seen, texts), 0)
        asked = bench if judge is bench else Bench(other)
        found = score_systems(asked, test, {"a": wrong}, ["aclip-s", "cider-d"])["a"]
        np.testing.assert_allclose(found["aCLIP-S"].per_image, expected, atol=1e-5)
        assert found.alignment == "procrustes on 36 pairs"
        assert f"the procrustes map of {judge.encoder.name}" in judged_note(asked)
        assert found["CIDEr-D"].value == cider_d(wrong, test.captions).value
    ols = Bench(replace(setup, judge_method="ols"))
    report = score_systems(ols, test, {"a": wrong}, ["aclip-s"])["a"]
    assert report.alignment == "ols on 36 pairs"
    assert "the ols map" in judged_note(ols)


def test_points() -> None:
    shown = points(MetricResult("CIDEr-D", 0.5, np.zeros(2), 0.25))
    assert (shown.value, shown.error) == (50, 25)
    shown = points(MetricResult("MID", 40.0, np.zeros(1), float("nan")))
    assert (shown.value, shown.error) == (40, None)
    assert points(MetricResult("ROUGE-L", float("nan"), np.zeros(1), 0.1)).value is None


def test_examples_show_both_ways_to_retrieve(data: Path, encoder_folder: Path, shared_encoder_folder: Path) -> None:
    pytest.importorskip("matplotlib")
    outcome = run_experiment("examples", bare_setup(data, shared_encoder_folder, shown="6"))
    table = outcome.tables["examples"]
    assert [column.name for column in table.columns] == ["without alignment", "with alignment", "a person"]
    assert len(table.sections[0].rows) == 6
    for row in table.sections[0].rows:
        colour = row.label.removesuffix("2.png")
        assert all(colour in part for part in str(row.cells[1].value).split("; "))
        assert colour in str(row.cells[2].value)
    bare = run_experiment("examples", bare_setup(data, encoder_folder)).tables["examples"]
    assert bare.columns[0].name == "of the picture that looks most alike"
    assert all(row.label.removesuffix("2.png") in str(row.cells[0].value) for row in bare.sections[0].rows)
    with pytest.raises(InputError, match="shown=0"):
        run_experiment("examples", bare_setup(data, encoder_folder, shown="0"))


def test_the_writer_looks_at_pictures_that_are_at_hand(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[bool] = []
    write = WriterModel.write

    def noted(self: WriterModel, prompts: Sequence[Prompt], decoding: Decoding) -> list[list[Draft]]:
        looked.extend(prompt.details is not None for prompt in prompts)
        return write(self, prompts, decoding)

    monkeypatch.setattr(WriterModel, "write", noted)
    study = Study(Setup(data, options={"samples": "1"}))
    test, alignment = study.load("flickr8k", "test"), study.train.fit("procrustes")
    study.caption(alignment, test)
    assert looked == [True] * len(test.ids)
    known = replace(test, pictures=())
    looked.clear()
    study.caption(alignment, known)
    assert looked == [False] * len(test.ids)
    assert [" (from vectors alone)" in study.titled(split) for split in (test, known)] == [False, True]
    looked.clear()
    run_experiment("dal", Setup(data, options={"samples": "1", "rounds": "1", "ks": "3", "metrics": "cider-d"}))
    measured_recap(study, study.train, test, test, time.process_time)
    assert looked
    assert all(looked)


def test_fewer_lies_are_better(data: Path, encoder_folder: Path, tmp_path: Path) -> None:
    test = read_flickr8k(data / "flickr8k", "test")
    file = results_file(tmp_path, [(pair.id, "an elephant") for pair in test])
    setup = make_setup(data, encoder_folder, results=f"Liar={file}", metrics="chair", maps="PR")
    table = run_experiment("captioning", setup).tables["captioning"]
    assert [column.name for column in table.columns] == ["CHAIR"]
    ours = table.sections[0]
    assert rows(table)["Liar"].cells[0].value == 100
    assert len(ours.rows) - 1 not in table.best(ours, 0), "the liar is the last row"


@pytest.fixture
def uneven(tmp_path: Path, own_cache: None, make_flickr8k: Callable[..., Path], pairs: list[Pair]) -> Path:
    """Of the pictures to test, every other one has one reference, which is long."""
    short = [pair.id for pair in pairs[1::2] if pair.id.endswith("2.png")]
    given = [replace(pair, captions=pair.captions[-1:]) if pair.id in short else pair for pair in pairs]
    return make_flickr8k(tmp_path / "data" / "flickr8k", given)


def test_metrics_are_correlated_over_pictures(uneven: Path, encoder_folder: Path) -> None:
    setup = Setup(
        uneven,
        encoder=f"onnx:{encoder_folder}",
        language_model="none",
        options={"metrics": "bleu-1,cider-d,aclip-s,clip-s"},
    )
    outcome = run_experiment("metric-correlation", setup)
    bench = Bench(setup)
    train, test = bench.load("flickr8k", "train"), bench.load("flickr8k", "test")
    fitted = train.fit("procrustes")
    captioner = ReCap(bench.encoder, fitted.statistics_, train.store(bench.encoder), alignment=fitted)
    captions = [caption.text for caption in captioner.caption_vectors(test.images)]
    scores = (
        bleu(captions, test.captions)[0].per_image,
        cider_d(captions, test.captions).per_image,
        aclip_s(test.images, bench.encoder.encode_texts(captions), train.fit("procrustes")),
    )
    table = outcome.tables["metric-correlation"]
    assert [column.name for column in table.columns] == ["BLEU-1", "CIDEr-D", "aCLIP-S"]
    assert [row.label for row in table.sections[0].rows] == ["BLEU-1", "CIDEr-D", "aCLIP-S"]
    expected = np.corrcoef(scores)
    assert np.abs(expected[np.triu_indices(3, 1)]).min() > 0.01, "nothing is constant"
    found = [[cell.value for cell in row.cells] for row in table.sections[0].rows]
    np.testing.assert_allclose(np.array(found, dtype=float), expected, atol=1e-4)
    assert list(outcome.figures) == ["metric-correlation"]
    assert any("CLIP-S" in note for note in table.notes)
