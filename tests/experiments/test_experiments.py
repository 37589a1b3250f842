"""Each experiment from the command line on a tiny data set in the shape of Flickr8k."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner, Result

from recap.captioner import ReCap
from recap.cli.experiment import experiment
from recap.datasets.vectors import write_vectors
from recap.datastore import DatastoreView
from recap.encoders import load_encoder
from recap.errors import InputError
from recap.experiments import EXPERIMENTS, Setup, run_experiment
from recap.experiments.base import options_of
from recap.experiments.dal import draw_examples
from recap.experiments.data import Bench, Split
from recap.experiments.retrieval import PROJECTIONS, gap
from recap.fitting.augmentation import Round
from recap.language import Decoding
from recap.language.writer import WriterModel
from recap.metrics import aclip_s, cider_d
from recap.types import Draft, Pair, Prompt

pytestmark = pytest.mark.usefixtures("own_cache")
COLOURS = ("red", "green", "blue", "yellow", "purple", "cyan")

CHEAP = ("--option", "metrics=cider-d,aclip-s,refaclip-s")
"""All that needs no parser."""
ELSEWHERE = ("this is {}", "the {} is this", "is this painted {}")
"""What people of the other data set say."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, make_flickr8k: Callable[..., Path], pairs: list[Pair]) -> Path:
    """Beside Flickr8k, a data set whose people call each colour by the next one."""
    folder = make_flickr8k(tmp_path_factory.mktemp("data") / "flickr8k", pairs)
    shutil.copytree(folder / "flickr8k" / "images", folder / "flickr30k" / "images")
    images = []
    for pair in pairs:
        colour = Path(pair.id).stem[:-1]
        called = COLOURS[(COLOURS.index(colour) + 1) % len(COLOURS)]
        sentences = [{"raw": saying.format(called)} for saying in ELSEWHERE]
        images.append({"filename": pair.id, "split": "train", "sentences": sentences})
    (folder / "flickr30k" / "dataset_flickr30k.json").write_text(json.dumps({"images": images}))
    return folder


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(experiment, [str(part) for part in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    return result


def labels(result: Result) -> list[str]:
    return [row["label"] for row in json.loads(result.stdout)["sections"][0]["rows"]]


def test_retrieval_fits_what_the_encoder_allows(data: Path, encoder_folder: Path, shared_encoder_folder: Path) -> None:
    bare = run("retrieval", "--data", data, "--encoder", f"onnx:{encoder_folder}", "--json")
    assert labels(bare) == ["IT", "LFA", "PR", "OLS", "ridge"]
    assert "share one space" in json.loads(bare.stdout)["notes"][-1]
    shared = run("retrieval", "--data", data, "--encoder", f"onnx:{shared_encoder_folder}", "--json")
    assert labels(shared) == ["ZS", "IT", "beta-PR", "LFA", "PR", "OLS", "ridge"]
    rows = {row["label"]: row["cells"] for row in json.loads(shared.stdout)["sections"][0]["rows"]}
    assert rows["OLS"]["i2t R@1"]["value"] == 100  # colours are told apart


def test_two_runs_print_the_same_and_times_go_elsewhere(data: Path, encoder_folder: Path, tmp_path: Path) -> None:
    arguments = ("alignment", "--data", data, "--encoder", f"onnx:{encoder_folder}", "--seed", 3, *CHEAP)
    one, other = run(*arguments, "--out", tmp_path / "out"), run(*arguments)
    assert one.stdout == other.stdout
    assert "CPU seconds" in one.stderr
    assert "CPU seconds" not in one.stdout
    assert one.stdout == (tmp_path / "out" / "alignment.txt").read_text()
    names = {path.name for path in (tmp_path / "out").iterdir()}
    kinds = ("txt", "md", "tex", "json", "csv")
    assert names == {f"{table}.{suffix}" for table in ("alignment", "times") for suffix in kinds}


def test_captions_are_right_with_every_map_and_by_pictures_alone(data: Path, encoder_folder: Path) -> None:
    result = run("alignment", "--data", data, "--encoder", f"onnx:{encoder_folder}", "--json", *CHEAP)
    assert labels(result) == ["UM", "IT", "LFA", "PR", "OLS", "ridge"]
    for row in json.loads(result.stdout)["sections"][0]["rows"]:
        assert row["cells"]["CIDEr-D"]["value"] > 100
        assert (row["cells"]["cos"]["value"] is None) == (row["label"] == "UM")


def test_transfer_tries_three_datastores_and_the_targets_own_map(data: Path, encoder_folder: Path) -> None:
    result = run(
        *("transfer", "--data", data, "--encoder", f"onnx:{encoder_folder}", "--option", "source=flickr30k", "--json")
    )
    stores = ["target", "source + target", "source"]
    wanted = [[*(f"{m}, {store}" for store in stores), f"{m} of the target, target"] for m in ("PR", "OLS")]
    assert labels(result) == wanted[0] + wanted[1]
    titles = [section["title"] for section in json.loads(result.stdout)["sections"]]
    assert titles[0].startswith("Flickr30k to Flickr8k test")
    expected = transferred(Bench(Setup(data, encoder=f"onnx:{encoder_folder}")))
    rows = json.loads(result.stdout)["sections"][0]["rows"]
    for row in rows:
        assert [row["cells"][name]["value"] for name in ("CIDEr-D", "aCLIP-S")] == pytest.approx(expected[row["label"]])
    assert len({round(cider, 3) for cider, _ in expected.values()}) >= 3, "maps and datastores make a difference"
    assert titles[1].startswith("the paper: Flickr30k")
    with pytest.raises(InputError, match="source and target are both flickr8k"):
        run_experiment("transfer", Setup(data, encoder=f"onnx:{encoder_folder}", options={"source": "flickr8k"}))


def transferred(bench: Bench) -> dict[str, tuple[float, float]]:
    """Return CIDEr-D and aCLIP-S of every case, each put together by hand."""
    here, there, test = (
        bench.load(*name) for name in (("flickr8k", "train"), ("flickr30k", "train"), ("flickr8k", "test"))
    )
    near, far = here.store(bench.encoder), there.store(bench.encoder)
    judge, found = here.fit("procrustes"), {}
    for label, method in (("PR", "procrustes"), ("OLS", "ols")):
        for case, alignment, store in (
            (f"{label}, target", there.fit(method), near),
            (f"{label}, source + target", there.fit(method), DatastoreView([near, far])),
            (f"{label}, source", there.fit(method), far),
            (f"{label} of the target, target", here.fit(method), near),
        ):
            captioner = ReCap(bench.encoder, alignment.statistics_, store, alignment=alignment)
            captions = [caption.text for caption in captioner.caption_vectors(test.images)]
            seen = aclip_s(test.images, bench.encoder.encode_texts(captions), judge)
            found[case] = (100 * cider_d(captions, test.captions).value, 100 * float(seen.mean()))
    return found


def test_the_gap_closes_and_the_figure_is_the_same_every_time(data: Path, encoder_folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    arguments = ("modality-gap", "--data", data, "--encoder", f"onnx:{encoder_folder}", "--option", "projection=pca")
    result = run(*arguments, "--json", "--out", tmp_path / "one")
    run(*arguments, "--out", tmp_path / "two")
    before, after = (row["cells"] for row in json.loads(result.stdout)["sections"][0]["rows"])
    assert after["distance of the means"]["value"] < before["distance of the means"]["value"]
    assert after["cosine of pairs"]["value"] > before["cosine of pairs"]["value"]
    for suffix in ("png", "svg"):
        files = [tmp_path / name / f"modality-gap-pca.{suffix}" for name in ("one", "two")]
        assert files[0].read_bytes() == files[1].read_bytes()
        assert files[0].stat().st_size > 1000


class Umap:
    """Stands in for umap-learn."""

    def __init__(self, *, random_state: int, metric: str, n_jobs: int) -> None:
        assert (random_state, metric) == (7, "cosine")

    def fit_transform(self, rows: np.ndarray) -> list[list[float]]:
        return [[float(row[0]), float(row[1])] for row in rows]


def test_umap_is_taken_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    monkeypatch.setitem(sys.modules, "umap", None)
    with pytest.raises(InputError, match="needs the package umap-learn: install it, or take t-sne or pca"):
        PROJECTIONS["umap"](rows, 7)
    monkeypatch.setitem(sys.modules, "umap", SimpleNamespace(UMAP=Umap))
    np.testing.assert_array_equal(PROJECTIONS["umap"](rows, 7), rows[:, :2])


def test_projections_give_two_coordinates() -> None:
    pytest.importorskip("sklearn")
    rows = np.random.default_rng(0).standard_normal((20, 6)).astype(np.float32)
    for name in ("t-sne", "pca"):
        one, other = PROJECTIONS[name](rows, 0), PROJECTIONS[name](rows, 0)
        assert one.shape == (20, 2)
        assert np.array_equal(one, other)


def test_clouds_that_lie_apart_have_no_neighbours_of_the_other_kind() -> None:
    random = np.random.default_rng(0)
    cloud = random.standard_normal((50, 4)) * 0.01
    apart = gap(cloud + np.eye(4)[0], cloud + np.eye(4)[1])
    assert apart[0].value == pytest.approx(np.sqrt(2), abs=0.01)
    assert apart[2].value == 0
    mixed = gap(random.standard_normal((400, 4)), random.standard_normal((400, 4)))
    assert mixed[2].value == pytest.approx(50, abs=5)


def test_every_decoding_draws_in_its_own_way(data: Path, encoder_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    asked: list[Decoding] = []
    write = WriterModel.write

    def noted(self: WriterModel, prompts: Sequence[Prompt], decoding: Decoding) -> list[list[Draft]]:
        asked.append(decoding)
        return write(self, prompts, decoding)

    monkeypatch.setattr(WriterModel, "write", noted)
    options = {"k": "3", "samples": "4", "temperature": "0.4", "metrics": "cider-d"}
    outcome = run_experiment("search-decoding", Setup(data, encoder=f"onnx:{encoder_folder}", options=options))
    wanted = {
        "Sampling": (0.4, 0, 1.0, 4),
        "Topk": (0.4, 50, 1.0, 4),
        "Greedy": (0.0, 0, 0.95, 4),
        "Nucleus, l=1": (0.4, 0, 0.95, 1),
        "Nucleus": (0.4, 0, 0.95, 4),
    }
    assert [row.label for row in outcome.tables["search-decoding"].sections[0].rows] == list(wanted)
    drawn = dict.fromkeys((one.temperature, one.top_k, one.top_p, one.samples) for one in asked)
    assert list(drawn) == list(wanted.values())


def test_a_picture_that_cannot_be_read_spoils_no_figure(pairs: list[Pair], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    (tmp_path / "broken.png").write_bytes(b"not a picture")
    pictures = (tmp_path / "broken.png", tmp_path / "gone.png", pairs[0].image, pairs[1].image)
    dev = Split("x", tuple("abcd"), ((),) * 4, np.zeros((4, 2)), np.zeros((0, 2)), pictures)
    before, after = (
        Round(number, 1, 0.0, {}, 0, 0, 0.0, tuple(f"{name} {number}" for name in "abcd")) for number in (0, 1)
    )
    figure = draw_examples(dev, [before, after])
    assert figure is not None
    assert [axes.get_title(loc="left") for axes in figure.axes if axes.images] == [
        f"DAL: {name} 1\nReCap: {name} 0" for name in "cd"
    ]
    assert draw_examples(dev.first(2), [before, after]) is None
    assert draw_examples(dev, [before, before]) is None


def test_what_cannot_be_run_is_said(data: Path, encoder_folder: Path, tmp_path: Path) -> None:
    setup = Setup(data, encoder=f"onnx:{encoder_folder}", on="vizwiz")
    with pytest.raises(InputError, match=r"train.json is missing.*vizwiz.org"):
        run_experiment("retrieval", setup)
    with pytest.raises(InputError, match="no data set 'imagenet'; there are flickr8k, flickr30k"):
        run_experiment("retrieval", Setup(data, encoder=f"onnx:{encoder_folder}", on="imagenet"))
    with pytest.raises(InputError, match=r"dataset_coco.json is missing.*karpathy"):
        run_experiment("retrieval", Setup(data, encoder=f"onnx:{encoder_folder}", on="coco"))
    with pytest.raises(InputError, match="unknown experiment 'magic'; known: alignment"):
        run_experiment("magic", setup)
    with pytest.raises(InputError, match="no such folder of data sets"):
        run_experiment("retrieval", Setup(tmp_path / "nowhere"))
    with pytest.raises(InputError, match="unknown projection 'lda'"):
        run_experiment("modality-gap", Setup(data, encoder=f"onnx:{encoder_folder}", options={"projection": "lda"}))


def test_coco_is_read_from_vectors_where_there_are_no_pictures(encoder_folder: Path, tmp_path: Path) -> None:
    references = [
        {"image": f"val2014/COCO_val2014_{number:012}.jpg", "caption": [f"a {colour} wall", f"the {colour}  wall"]}
        for number, colour in ((9, "red"), (4, "blue"), (6, "green"))
    ]
    (tmp_path / "coco").mkdir()
    (tmp_path / "coco" / "karpathy_test_references.json").write_text(json.dumps(references))
    encoder, rows = load_encoder(f"onnx:{encoder_folder}"), np.eye(3, 4, dtype=np.float32)
    write_vectors(tmp_path / "coco-vectors", [4, 5, 9], rows, encoder.image)
    test = Bench(Setup(tmp_path, encoder=f"onnx:{encoder_folder}", on="coco")).load("coco", "test")
    assert test.ids == ("4", "9")
    assert test.captions == (("a blue wall", "the blue wall"), ("a red wall", "the red wall"))
    np.testing.assert_array_equal(test.images, rows[[0, 2]])


def test_vectors_of_another_encoder_are_refused(encoder_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "coco-vectors").mkdir()
    np.save(tmp_path / "coco-vectors" / "ids.npy", np.arange(3))
    np.save(tmp_path / "coco-vectors" / "tinyvit.npy", np.zeros((3, 320), np.float16))
    with pytest.raises(InputError, match="holds vectors of tinyvit, not of onnx"):
        run_experiment("retrieval", Setup(tmp_path, encoder=f"onnx:{encoder_folder}", on="coco"))


@pytest.mark.parametrize("name", EXPERIMENTS.names())
def test_every_experiment_is_there_with_its_options(name: str) -> None:
    assert options_of(name)
