"""Each experiment from the command line on a tiny data set in the shape of Flickr8k."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from recap.cli.experiment import experiment
from recap.datasets.vectors import write_vectors
from recap.encoders import load_encoder
from recap.errors import InputError
from recap.experiments import EXPERIMENTS, Setup, run_experiment
from recap.experiments.data import Bench
from recap.experiments.modality_gap import PROJECTIONS, gap
from recap.types import Pair

SPLITS = {"train": (0, 1), "dev": (), "test": (2,)}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, pairs: list[Pair]) -> Path:
    """Two pictures of each colour to fit, one to test."""
    folder = tmp_path_factory.mktemp("data")
    for name in ("flickr8k", "flickr30k"):
        (folder / name / "images").mkdir(parents=True)
        for pair in pairs:
            shutil.copy(str(pair.image), folder / name / "images")
    home = folder / "flickr8k"
    lines = [f"{pair.id}#{number}\t{text}\n" for pair in pairs for number, text in enumerate(pair.captions)]
    (home / "captions.token.txt").write_text("".join(lines))
    for split, numbers in SPLITS.items():
        names = [pair.id for pair in pairs if int(Path(pair.id).stem[-1]) in numbers]
        (home / f"{split}.txt").write_text("\n".join(names))
    images = [
        {"filename": pair.id, "split": "train", "sentences": [{"raw": text} for text in pair.captions]}
        for pair in pairs
    ]
    (folder / "flickr30k" / "dataset_flickr30k.json").write_text(json.dumps({"images": images}))
    return folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECAP_CACHE", str(tmp_path / "cache"))


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
    arguments = ("alignment", "--data", data, "--encoder", f"onnx:{encoder_folder}", "--seed", 3)
    one, other = run(*arguments, "--out", tmp_path / "out"), run(*arguments)
    assert one.stdout == other.stdout
    assert "CPU seconds" in one.stderr
    assert "CPU seconds" not in one.stdout
    assert one.stdout == (tmp_path / "out" / "alignment.txt").read_text()
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {f"{table}.{suffix}" for table in ("alignment", "times") for suffix in ("txt", "md", "tex", "json")}


def test_captions_are_right_with_every_map_and_by_pictures_alone(data: Path, encoder_folder: Path) -> None:
    result = run("alignment", "--data", data, "--encoder", f"onnx:{encoder_folder}", "--json")
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
    assert titles[1].startswith("the paper: Flickr30k")
    with pytest.raises(InputError, match="source and target are both flickr8k"):
        run_experiment("transfer", Setup(data, encoder=f"onnx:{encoder_folder}", options={"source": "flickr8k"}))


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


def test_projections_give_two_coordinates(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_what_cannot_be_run_is_said(data: Path, encoder_folder: Path, tmp_path: Path) -> None:
    setup = Setup(data, encoder=f"onnx:{encoder_folder}", on="vizwiz")
    with pytest.raises(InputError, match=r"train.json is missing.*vizwiz.org"):
        run_experiment("retrieval", setup)
    with pytest.raises(InputError, match="no data set 'imagenet'; there are flickr8k, flickr30k"):
        run_experiment("retrieval", Setup(data, encoder=f"onnx:{encoder_folder}", on="imagenet"))
    with pytest.raises(InputError, match=r"dataset_coco.json is missing.*karpathy"):
        run_experiment("retrieval", Setup(data, encoder=f"onnx:{encoder_folder}", on="coco"))
    with pytest.raises(InputError, match="there is no experiment 'magic'; there are alignment"):
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


def test_every_experiment_has_a_module() -> None:
    for name in EXPERIMENTS:
        assert (Path(run_experiment.__code__.co_filename).parent / f"{name.replace('-', '_')}.py").exists()
