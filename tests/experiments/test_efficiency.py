"""The table of efficiency from the command line, on a tiny data set in the shape of Flickr8k."""

from __future__ import annotations

import json
import time
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image

from recap.cli.experiment import experiment
from recap.datasets.captions import read_candidates
from recap.encoders import load_encoder
from recap.errors import InputError
from recap.experiments import Setup
from recap.experiments.captioning import read_results
from recap.experiments.data import Bench
from recap.experiments.efficiency import clock_of, measured_recap
from recap.experiments.study import Study

pytestmark = pytest.mark.usefixtures("own_cache")

COLOURS = ("red", "green", "blue", "yellow", "purple", "cyan")


def run(data: Path, encoder: Path, *options: str, out: Path | None = None) -> Result:
    arguments = ["efficiency", "--data", str(data), "--encoder", f"onnx:{encoder}", "--json"]
    for option in ("decoder=scratch", *options):
        arguments += ["--option", option]
    if out:
        arguments += ["--out", str(out)]
    result = CliRunner().invoke(experiment, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    return result


def rows(table: dict[str, Any]) -> list[dict[str, Any]]:
    return [{name: cell["value"] for name, cell in row["cells"].items()} for row in table["sections"][0]["rows"]]


def test_an_epoch_is_told_from_a_few_steps(torch: Any, data: Path, encoder_folder: Path, tmp_path: Path) -> None:
    result = run(data, encoder_folder, "steps=2", "batch=4", out=tmp_path / "out")
    recap, clipcap, smallcap = rows(json.loads((tmp_path / "out" / "times.json").read_text()))
    assert recap["counted"] == "measured"
    assert recap["epoch / fit"] == 1
    # 36 captions are nine steps of four
    assert clipcap["counted"] == smallcap["counted"] == "extrapolated from 2 of 9 steps"
    for row in (clipcap, smallcap):
        assert row["epoch / fit"] == pytest.approx(row["Training"] / recap["Training"])
        assert row["to best dev"] is None
        assert row["1,000 pictures"] > 0
    table = json.loads(result.stdout)
    assert [row["label"] for row in table["sections"][1]["rows"]] == [
        *("ClipCap", "Prefix-Diffusion", "I-Tuning", "SmallCap", "ReCap")
    ]
    assert rows(table)[0]["|theta|"] == "0.00M"  # 4 x 12
    assert rows(table)[0]["dev CIDEr-D"] > 100
    assert rows(table)[1]["dev CIDEr-D"] is None


def test_trained_to_the_best_of_dev_and_again_from_checkpoints(
    torch: Any, data: Path, encoder_folder: Path, tmp_path: Path
) -> None:
    kept = (f"checkpoints={tmp_path / 'kept'}", f"captions={tmp_path / 'said'}")
    options = ("epochs=3", "batch=6", "rate=0.01", "systems=clipcap", *kept)
    one = run(data, encoder_folder, *options, out=tmp_path / "out")
    assert list(read_candidates(tmp_path / "said" / "clipcap.json")) == sorted(f"{name}2.png" for name in COLOURS)
    assert {path.name for path in (tmp_path / "kept" / "clipcap").iterdir()} == {"last.pt", "best.pt"}
    times = rows(json.loads((tmp_path / "out" / "times.json").read_text()))[1]
    assert times["counted"] == "measured"
    assert times["to best dev"] >= times["Training"]
    assert "epoch 3, loss" in one.stderr
    other = run(data, encoder_folder, *options)
    assert other.stdout == one.stdout
    assert "epoch 3" not in other.stderr  # all epochs were there
    assert rows(json.loads(one.stdout))[1]["epochs"].endswith("of 3")


def test_baselines_trained_by_the_published_recipes(
    torch: Any, data: Path, encoder_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from recap.experiments.baselines.training import Trainer

    plans, seen = [], []
    begin, step = Trainer.__init__, Trainer.step

    def noted(self: Any, model: Any, train: Any, plan: Any, **clock: Any) -> None:
        plans.append(plan)
        begin(self, model, train, plan, **clock)

    def watched(self: Any) -> float:
        seen.append(self._train.images.shape)
        return step(self)

    monkeypatch.setattr(Trainer, "__init__", noted)
    monkeypatch.setattr(Trainer, "step", watched)
    result = run(data, encoder_folder, "steps=1", "recipe=published", "batch=4")
    assert [(plan.batch, plan.rate, plan.epochs) for plan in plans] == [(4, 2e-5, 10), (4, 1e-4, 10)]
    assert plans[0].warmup == 5000
    assert set(seen) == {(12, 4)}
    (note,) = [note for note in json.loads(result.stdout)["notes"] if "published recipes" in note]
    assert "the language model is scratch, not GPT-2" in note
    assert "SmallCap looks at one vector a picture, not at 50 patches of ViT-B/32; batch=4." in note
    with pytest.raises(InputError, match="unknown recipe 'puplished'"):
        run(data, encoder_folder, "steps=1", "recipe=puplished")


def test_smallcap_looks_at_places_where_the_encoder_has_some(torch: Any) -> None:
    from recap.experiments.baselines.systems import Places

    encoder = load_encoder("builtin")
    pictures = [Image.new("RGB", (64, 48), colour) for colour in ("red", "blue")]
    found, width = Places(encoder)(pictures), Places(encoder).width
    assert found.shape == (2, 49, width)
    row = next(iter(encoder.encode_each(pictures[1:], details=True)))
    np.testing.assert_allclose(found[1].reshape(-1), row[-49 * width :], atol=1e-5)


def test_all_systems_have_one_clock(data: Path, encoder_folder: Path) -> None:
    bench, ticks = Study(Setup(data, encoder=f"onnx:{encoder_folder}"), "none"), count()
    splits = [bench.load("flickr8k", name) for name in ("train", "dev", "test")]
    _, ours = measured_recap(bench, *splits, lambda: float(next(ticks)))
    assert (ours.training, ours.captioning) == (1, 1000 / 6)
    assert clock_of(bench.setup) is time.process_time
    assert clock_of(Setup(data, options={"device": "cuda"})) is time.perf_counter


def publish_clipcap(torch: Any, folder: Path, decoder: Any, image: int = 4) -> Path:
    """Write a checkpoint as ClipCap's are, with a prefix of two, and GPT-2's tokenizer beside it."""
    decoder.tokenizer.save_pretrained(folder / "tokenizer")
    state = {f"gpt.{name}": weight for name, weight in decoder.model.state_dict().items()}
    for name, shape in {"0.weight": (64, image), "0.bias": (64,), "2.weight": (128, 64), "2.bias": (128,)}.items():
        state[f"clip_project.model.{name}"] = torch.randn(shape)
    torch.save(state, folder / "coco.pt")
    return folder / "coco.pt"


def test_a_published_clipcap_needs_no_training_and_its_captions_can_be_compared(
    torch: Any, make_decoder: Any, data: Path, encoder_folder: Path, tmp_path: Path
) -> None:
    from recap.experiments.baselines.clipcap import ClipCap

    file = publish_clipcap(torch, tmp_path, make_decoder(width=64, heads=1))
    options = ("systems=clipcap", f"clipcap={file}", f"tokenizer={tmp_path / 'tokenizer'}", f"captions={tmp_path}")
    result = run(data, encoder_folder, *options, out=tmp_path / "out")
    (times,) = rows(json.loads((tmp_path / "out" / "times.json").read_text()))[1:]
    assert (times["counted"], times["Training"], times["epoch / fit"]) == ("published", None, None)
    table = json.loads(result.stdout)
    assert table["sections"][0]["rows"][1]["label"] == "ClipCap, coco.pt (published)"
    assert rows(table)[1]["dev CIDEr-D"] >= 0
    assert "write greedily. ReCap: map procrustes, selection rule consensus, candidates among the" in table["notes"][1]
    test = Bench(Setup(data, encoder=f"onnx:{encoder_folder}")).load("flickr8k", "test")
    tokenizer = make_decoder().tokenizer
    expected = ClipCap.from_published(file, tokenizer).write(torch.from_numpy(test.images), [""] * 6)
    assert read_results(f"ClipCap={tmp_path / 'clipcap.json'}", test) == {"ClipCap": expected}
    wide = publish_clipcap(torch, tmp_path, make_decoder(width=64, heads=1), image=7)
    with pytest.raises(InputError, match=r"reads image vectors of 7 dimensions, and those of onnx.* have 4"):
        run(data, encoder_folder, "systems=clipcap", f"clipcap={wide}", f"tokenizer={tmp_path / 'tokenizer'}")


def test_a_published_smallcap_sees_the_pictures_themselves(
    torch: Any, make_decoder: Any, data: Path, encoder_folder: Path, tmp_path: Path
) -> None:
    from transformers import CLIPVisionConfig, CLIPVisionModel, GPT2LMHeadModel

    from recap.experiments.baselines.systems import MEAN, STD, Patches

    decoder = make_decoder()
    decoder.tokenizer.save_pretrained(tmp_path / "tokenizer")
    decoder.model.config.add_cross_attention = True
    sizes = {"hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"image_size": 8, "patch_size": 4}
    clip = CLIPVisionModel(CLIPVisionConfig(**sizes)).eval()
    gpt, seen = GPT2LMHeadModel(decoder.model.config), getattr(clip, "vision_model", clip)
    state = {f"decoder.{name}": weight for name, weight in gpt.state_dict().items()}
    state |= {f"encoder.{name}": weight for name, weight in seen.state_dict().items()}
    torch.save({**state, "encoder.embeddings.position_ids": torch.arange(5)}, tmp_path / "pytorch_model.bin")
    config = {"encoder": {"model_type": "clip", "vision_config": sizes}, "decoder": gpt.config.to_dict()}
    (tmp_path / "config.json").write_text(json.dumps(config))

    grey = (np.full(3, 100 / 255) - MEAN) / STD
    pixels = torch.tensor(grey, dtype=torch.float32)[None, :, None, None].expand(1, 3, 8, 8)
    expected = clip(pixel_values=pixels).last_hidden_state.detach().numpy()
    found = Patches(tmp_path)([Image.new("RGB", (20, 12), (100, 100, 100))])
    assert found.shape == (1, 5, 32)
    np.testing.assert_allclose(found, expected, atol=1e-5)

    options = (
        "systems=smallcap",
        f"smallcap={tmp_path}",
        f"tokenizer={tmp_path / 'tokenizer'}",
        f"captions={tmp_path}",
    )
    table = json.loads(run(data, encoder_folder, *options).stdout)
    assert table["sections"][0]["rows"][1]["label"] == f"SmallCap, {tmp_path.name} (published)"
    assert len(read_candidates(tmp_path / "smallcap.json")) == 6
    assert "A published SmallCap looks at the patches" in table["notes"][0]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("captions=said", "clipcap is not trained. Give epochs=10, or clipcap=FILE"),
        ("systems=blip", "no baseline 'blip'"),
        ("tuned=maybe", "yes or no, not 'maybe'"),
        ("steps=few", "steps=few: expected a whole number"),
        ("pictures=0", "pictures=0: expected a whole number, at least 1"),
        ("rate=slow", "rate=slow: expected a number"),
    ],
)
def test_wrong_options_are_refused(torch: Any, data: Path, encoder_folder: Path, option: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        run(data, encoder_folder, option)


def test_a_checkpoint_of_a_system_that_is_not_asked_for_is_refused(data: Path, encoder_folder: Path) -> None:
    with pytest.raises(InputError, match=r"smallcap=x: smallcap is not among systems=clipcap"):
        run(data, encoder_folder, "systems=clipcap", "smallcap=x")
