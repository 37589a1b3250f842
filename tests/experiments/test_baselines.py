"""ClipCap, SmallCap and their loop, on models of two layers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recap.errors import InputError

CAPTIONS = [
    "a brown dog runs over the grass.",
    "two children play football in the park.",
    "a woman in a red coat rides a bicycle.",
    "a cat sleeps beside the window.",
]
PROMPTS = [f"Similar images show\n\n{text}\n\nThis image shows " for text in reversed(CAPTIONS)]
MakeDecoder = Callable[..., Any]


def _images(dimension: int = 6) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((4, dimension)).astype(np.float32)


def _examples() -> Any:
    from recap.experiments.baselines.training import Examples

    return Examples(_images(), [[text] for text in CAPTIONS], PROMPTS)


def _model(place: int, decoder: Any, torch: Any, **arguments: Any) -> Any:
    from recap.experiments.baselines.clipcap import ClipCap
    from recap.experiments.baselines.smallcap import SmallCap

    torch.manual_seed(3)
    if place == 2:
        return ClipCap(6, decoder, mapper="mlp", **arguments)
    return (ClipCap, SmallCap)[place](6, decoder, **arguments)


@pytest.fixture(params=[0, 1, 2], ids=["clipcap", "smallcap", "clipcap-mlp"])
def place(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def test_the_loss_falls_until_every_caption_is_known(torch: Any, make_decoder: MakeDecoder, place: int) -> None:
    from recap.experiments.baselines.training import Plan, Trainer, judge, write_captions

    model = _model(place, make_decoder(), torch, tuned=True)
    examples = _examples()
    trainer = Trainer(model, examples, Plan(epochs=60, batch=4, rate=1e-2))
    losses = [trainer.step() for _ in range(60)]
    assert losses[-1] < 0.1 * losses[0]
    written = write_captions(model, examples.images, examples.prompts)
    assert [text.replace(" .", ".") for text in written] == CAPTIONS
    assert judge(model, examples).value > 5


def test_images_decide_what_is_written(torch: Any, make_decoder: MakeDecoder) -> None:
    """SmallCap with the same prompt for all: only the cross-attention can tell them apart."""
    from recap.experiments.baselines.smallcap import SmallCap
    from recap.experiments.baselines.training import Examples, Plan, Trainer, write_captions

    torch.manual_seed(0)
    model = SmallCap(6, make_decoder(), tuned=True)
    examples = Examples(_images(), [[text] for text in CAPTIONS], PROMPTS[:1] * 4)
    trainer = Trainer(model, examples, Plan(epochs=80, batch=4, rate=1e-2))
    for _ in range(80):
        trainer.step()
    written = write_captions(model, examples.images, examples.prompts)
    assert [text.replace(" .", ".") for text in written] == CAPTIONS


def test_a_frozen_language_model_stays_as_it_is(torch: Any, make_decoder: MakeDecoder, place: int) -> None:
    from recap.experiments.baselines.training import Plan, Trainer

    model = _model(place, make_decoder(), torch)
    frozen = {name: weight.clone() for name, weight in model.gpt.state_dict().items()}
    before = {name: weight.detach().clone() for name, weight in model.trainable.items()}
    trainer = Trainer(model, _examples(), Plan(epochs=5, batch=2, rate=1e-2))
    for _ in range(3):
        trainer.step()
    assert all(torch.equal(weight, frozen[name]) for name, weight in model.gpt.state_dict().items())
    assert not any(name.startswith("gpt.") for name in before)
    changed = {name for name, weight in model.trainable.items() if not torch.equal(weight, before[name])}
    # with one vector an image, queries and keys learn nothing, and only decay
    assert changed >= {name for name in before if ".query." not in name and ".key." not in name}


@pytest.mark.parametrize("family", ["gpt2", "llama", "opt"])
def test_loss_and_captions_agree_with_one_picture_at_a_time(torch: Any, make_decoder: MakeDecoder, family: str) -> None:
    """Padding, masks, positions and the cache change nothing."""
    from recap.experiments.baselines.decoders import Decoder

    known = make_decoder()
    decoder = known if family == "gpt2" else Decoder(_tiny(family, len(known.tokenizer)), known.tokenizer, 0, family)
    for place in (0, 1):
        model = _model(place, decoder if place == 0 else _again(decoder, make_decoder, family), torch).eval()
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.data.normal_(0, 0.3)
        images = torch.from_numpy(_images())
        whole = model.loss(images, PROMPTS, CAPTIONS).detach()
        sums = counts = 0.0
        for i, text in enumerate(CAPTIONS):
            ids = [*decoder.encode(text), decoder.end]
            sums += len(ids) * float(model.loss(images[i : i + 1], PROMPTS[i : i + 1], [text]).detach())
            counts += len(ids)
        assert float(whole) == pytest.approx(sums / counts, rel=1e-4)
        alone = [model.write(images[i : i + 1], PROMPTS[i : i + 1])[0] for i in range(4)]
        assert model.write(images, PROMPTS) == alone
        begun = model.write(images, PROMPTS, limit=2)
        assert all(text.startswith(start) and len(start.split()) <= 2 for text, start in zip(alone, begun, strict=True))
        assert [_naive(model, torch, images[i : i + 1], PROMPTS[i]) for i in range(4)] == alone


def _naive(model: Any, torch: Any, image: Any, prompt: str) -> str:
    """Write without a cache, a whole pass for each token."""
    from recap.experiments.baselines.decoders import CAPTION_TOKENS

    row: list[int] = []
    with torch.inference_mode():
        before, _ = model.condition(image, [prompt])
        while len(row) < CAPTION_TOKENS:
            after = model.gpt.get_input_embeddings()(torch.tensor([row], dtype=torch.long))
            token = int(model.gpt(inputs_embeds=torch.cat([before, after], 1)).logits[0, -1].argmax())
            if token == model.decoder.end:
                break
            row.append(token)
    return str(model.decoder.tokenizer.decode(row, skip_special_tokens=True)).strip()


def _tiny(family: str, size: int) -> Any:
    import transformers as t

    if family == "llama":
        config: Any = t.LlamaConfig(
            vocab_size=size, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=256, bos_token_id=0, eos_token_id=0,
        )  # fmt: skip
    else:
        config = t.OPTConfig(
            vocab_size=size, hidden_size=32, ffn_dim=48, num_hidden_layers=2, num_attention_heads=4,
            max_position_embeddings=256, word_embed_proj_dim=32, dropout=0.0, bos_token_id=0, eos_token_id=0,
            pad_token_id=0,
        )  # fmt: skip
    return t.AutoModelForCausalLM.from_config(config)


def _again(decoder: Any, make_decoder: MakeDecoder, family: str) -> Any:
    """A language model of its own: a SmallCap leaves its cross-attention in the one that it is given."""
    from recap.experiments.baselines.decoders import Decoder

    if family == "gpt2":
        return make_decoder()
    return Decoder(_tiny(family, len(decoder.tokenizer)), decoder.tokenizer, 0, family)


def test_a_killed_run_goes_on_to_the_same_weights(
    torch: Any, make_decoder: MakeDecoder, tmp_path: Path, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from recap.experiments.baselines import training

    monkeypatch.setattr(training, "CHECKPOINT_STEPS", 3)
    plan = training.Plan(epochs=4, batch=1, rate=1e-3, patience=9)
    examples = _examples()

    class Killed(Exception):
        pass

    def run(folder: Path | None, kill_after: int = 99) -> Any:
        trainer = training.Trainer(_model(place, make_decoder(), torch, tuned=True), examples, plan)
        step = trainer.step

        def limited() -> float:
            if trainer.steps >= kill_after:
                raise Killed
            return step()

        monkeypatch.setattr(trainer, "step", limited)
        trainer.run(examples, folder)
        return trainer

    whole = run(None)
    for after in (2, 7, 11):
        with pytest.raises(Killed):
            run(tmp_path / "one", kill_after=after)
    resumed = run(tmp_path / "one")
    assert [(e.number, e.loss, e.cider_d) for e in resumed.epochs] == [
        (e.number, e.loss, e.cider_d) for e in whole.epochs
    ]
    for name, weight in whole.model.trainable.items():
        assert torch.equal(weight, resumed.model.trainable[name]), name
    other = training.Trainer(_model(place, make_decoder(), torch), examples, plan)
    with pytest.raises(InputError, match="checkpoints of a run with other trained weights: name another folder"):
        other.run(examples, tmp_path / "one")


def test_checkpoints_of_another_run_are_refused(torch: Any, make_decoder: MakeDecoder, tmp_path: Path) -> None:
    from recap.experiments.baselines.clipcap import ClipCap
    from recap.experiments.baselines.training import Examples, Plan, Trainer

    plan, known = Plan(epochs=1, batch=4), _examples()

    def run(train: Any = known, dev: Any = known, plan: Plan = plan, **sizes: int) -> None:
        torch.manual_seed(3)
        Trainer(ClipCap(train.images.shape[1], make_decoder(**sizes)), train, plan).run(dev, tmp_path)

    run()
    run()  # the same goes on
    others = Examples(-known.images, known.captions, known.prompts)
    words = Examples(known.images, known.captions[::-1], known.prompts)
    asked = Examples(known.images, known.captions, known.prompts[::-1])
    wider = Examples(_images(8), known.captions, known.prompts)
    for arguments, message in (
        ({"train": others}, "other training examples:"),
        ({"train": words}, "other training examples:"),
        ({"train": asked}, "other training examples:"),
        ({"train": wider}, "other training examples, weights:"),
        ({"layers": 3}, "other weights:"),
        ({"dev": words}, "other dev examples:"),
        ({"plan": Plan(epochs=2, batch=4)}, "other epochs:"),
    ):
        with pytest.raises(InputError, match=message):
            run(**arguments)


def test_training_stops_when_dev_gets_no_better_and_the_best_weights_are_kept(
    torch: Any, make_decoder: MakeDecoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    from recap.experiments.baselines import training

    model = _model(0, make_decoder(), torch)
    scores, seen = iter([0.2, 0.5, 0.3, 0.4, 0.1]), []

    def judge(model: Any, dev: Any) -> Any:
        from recap.metrics.corpus import mean_result

        seen.append({name: weight.detach().clone() for name, weight in model.trainable.items()})
        return mean_result("CIDEr-D", np.full(2, next(scores)))

    monkeypatch.setattr(training, "judge", judge)
    trainer = training.Trainer(model, _examples(), training.Plan(epochs=9, batch=4, rate=1e-2, patience=3))
    assert len(trainer.run(_examples())) == 5
    assert trainer.best.number == 2
    assert all(torch.equal(weight, seen[1][name]) for name, weight in model.trainable.items())


def test_the_rate_rises_and_falls(torch: Any) -> None:
    from recap.experiments.baselines.training import Plan

    rates = [Plan(rate=1.0, warmup=0.1).rate_at(step, 100) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == 1.0
    assert rates[9] == rates[10] == 1.0
    assert rates[-1] == pytest.approx(1 / 90)
    assert sorted(rates[10:], reverse=True) == rates[10:]


def test_the_published_recipes(torch: Any) -> None:
    from recap.experiments.baselines.systems import RECIPES

    clipcap, smallcap = RECIPES["clipcap"], RECIPES["smallcap"]
    assert (clipcap.batch, clipcap.epochs, smallcap.batch, smallcap.epochs) == (40, 10, 64, 10)
    assert clipcap.rate_at(2499, 140_000) == pytest.approx(1e-5)  # half of 5,000 steps of warm-up
    assert clipcap.rate_at(4999, 140_000) == pytest.approx(2e-5)
    assert clipcap.rate_at(1999, 2000) == pytest.approx(8e-6)  # too few steps to reach the highest rate
    assert smallcap.rate_at(0, 90_000) == pytest.approx(1e-4)
    assert smallcap.rate_at(45_000, 90_000) == pytest.approx(5e-5, rel=1e-3)


def test_a_published_clipcap_is_loaded(torch: Any, make_decoder: MakeDecoder, tmp_path: Path) -> None:
    from recap.experiments.baselines.clipcap import ClipCap

    decoder = make_decoder()
    state = {f"gpt.{name}": tensor for name, tensor in decoder.model.state_dict().items()}
    for layer in range(2):  # as older versions of transformers saved them
        state[f"gpt.transformer.h.{layer}.attn.bias"] = torch.ones(1, 1, 4, 4, dtype=torch.uint8).tril()
        state[f"gpt.transformer.h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    for name, shape in {"0.weight": (48, 6), "0.bias": (48,), "2.weight": (96, 48), "2.bias": (96,)}.items():
        state[f"clip_project.model.{name}"] = torch.randn(shape)
    torch.save(state, tmp_path / "coco.pt")
    model = ClipCap.from_published(tmp_path / "coco.pt", decoder.tokenizer, heads=4, scale=2.0).eval()
    assert model.clip_project.length == 3
    images = torch.from_numpy(_images())
    hidden = torch.tanh(2 * images @ state["clip_project.model.0.weight"].T + state["clip_project.model.0.bias"])
    prefix = (hidden @ state["clip_project.model.2.weight"].T + state["clip_project.model.2.bias"]).view(4, 3, 32)
    found, mask = model.condition(images, PROMPTS)
    assert torch.allclose(found, prefix, atol=1e-5)
    assert mask.all()
    expected = decoder.model.eval()(inputs_embeds=prefix).logits
    assert torch.allclose(model.gpt(inputs_embeds=found).logits, expected, atol=1e-4)
    assert decoder.tokenizer.decode([model.decoder.end]) == "."
    torch.save(model.state_dict(), tmp_path / "again.pt")
    again = ClipCap.from_published(tmp_path / "again.pt", decoder.tokenizer, heads=4)
    assert all(torch.equal(weight, again.state_dict()[name]) for name, weight in model.state_dict().items())


def test_a_published_clipcap_with_a_transformer_is_loaded(
    torch: Any, make_decoder: MakeDecoder, tmp_path: Path
) -> None:
    """Its prefix against numpy, from weights under the published names: 2 layers, 8 heads, 3 of 5 vectors are kept."""
    from recap.experiments.baselines.clipcap import ClipCap

    decoder = make_decoder()
    state = {f"gpt.{name}": tensor for name, tensor in decoder.model.state_dict().items()}
    shapes = {"linear.weight": (64, 6), "linear.bias": (64,), "prefix_const": (3, 32)}
    for layer in range(2):
        start = f"transformer.layers.{layer}"
        shapes |= {f"{start}.norm{i}.{kind}": (32,) for i in (1, 2) for kind in ("weight", "bias")}
        shapes |= {f"{start}.attn.to_queries.weight": (32, 32), f"{start}.attn.to_keys_values.weight": (64, 32)}
        shapes |= {f"{start}.attn.project.weight": (32, 32), f"{start}.attn.project.bias": (32,)}
        shapes |= {f"{start}.mlp.fc1.weight": (64, 32), f"{start}.mlp.fc1.bias": (64,)}
        shapes |= {f"{start}.mlp.fc2.weight": (32, 64), f"{start}.mlp.fc2.bias": (32,)}
    state |= {f"clip_project.{name}": 0.5 * torch.randn(shape) for name, shape in shapes.items()}
    torch.save(state, tmp_path / "transformer.pt")
    model = ClipCap.from_published(tmp_path / "transformer.pt", decoder.tokenizer, heads=4).eval()
    found, mask = model.condition(torch.from_numpy(_images()), PROMPTS)
    weights = {name: state[f"clip_project.{name}"].double().numpy() for name in shapes}
    expected = np.stack([_mapped(weights, image) for image in _images().astype(float)])
    assert found.shape == (4, 3, 32)
    assert mask.all()
    assert np.allclose(found.detach().numpy(), expected, rtol=1e-3, atol=1e-3)


def _mapped(weights: dict[str, np.ndarray], image: np.ndarray) -> np.ndarray:
    """The published mapper for one image, a head at a time."""

    def norm(rows: np.ndarray, name: str) -> np.ndarray:
        plain = (rows - rows.mean(1, keepdims=True)) / np.sqrt(rows.var(1, keepdims=True) + 1e-5)
        return plain * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    seen = (weights["linear.weight"] @ image + weights["linear.bias"]).reshape(2, 32)
    rows = np.concatenate([seen, weights["prefix_const"]])
    for layer in range(2):
        start = f"transformer.layers.{layer}"
        normed = norm(rows, f"{start}.norm1")
        queries = normed @ weights[f"{start}.attn.to_queries.weight"].T
        keys, values = np.split(normed @ weights[f"{start}.attn.to_keys_values.weight"].T, 2, axis=1)
        mixed = []
        for head in range(8):
            part = slice(4 * head, 4 * head + 4)
            scores = np.exp(queries[:, part] @ keys[:, part].T / 2)
            mixed.append(scores / scores.sum(1, keepdims=True) @ values[:, part])
        joined = np.concatenate(mixed, axis=1)
        rows = rows + joined @ weights[f"{start}.attn.project.weight"].T + weights[f"{start}.attn.project.bias"]
        normed = norm(rows, f"{start}.norm2")
        hidden = np.maximum(normed @ weights[f"{start}.mlp.fc1.weight"].T + weights[f"{start}.mlp.fc1.bias"], 0)
        rows = rows + hidden @ weights[f"{start}.mlp.fc2.weight"].T + weights[f"{start}.mlp.fc2.bias"]
    return rows[2:]


@pytest.mark.parametrize(("mapper", "count"), [("transformer", 42_728_448), ("mlp", 31_960_320)])
def test_mappers_have_as_many_parameters_as_the_paper_says(torch: Any, mapper: str, count: int) -> None:
    """With RN50x4's vectors (640) and GPT-2's embeddings (768): 42.7 and 32.0 million, none of them made."""
    from recap.experiments.baselines.clipcap import MAPPERS, PREFIX

    with torch.device("meta"):
        made = MAPPERS[mapper](640, 768, PREFIX)
    assert sum(weight.numel() for weight in made.parameters()) == count


def test_a_published_smallcap_agrees_with_gpt2s_own_cross_attention(
    torch: Any, make_decoder: MakeDecoder, tmp_path: Path
) -> None:
    from transformers import GPT2LMHeadModel

    from recap.experiments.baselines.smallcap import SmallCap

    decoder = make_decoder()
    config = decoder.model.config
    config.add_cross_attention = True
    oracle = GPT2LMHeadModel(config).eval()
    for weight in oracle.parameters():
        weight.data.normal_(0, 0.2)
    _publish(torch, tmp_path, {**config.to_dict(), "model_type": "this_gpt2"}, oracle.state_dict())
    model = SmallCap.from_published(tmp_path, decoder.tokenizer).eval()
    patches = torch.randn(4, 5, 32)
    embedded, mask = model.condition(patches, [PROMPTS[0]] * 4)
    found = model.gpt(inputs_embeds=embedded, attention_mask=mask).logits
    expected = oracle(inputs_embeds=embedded, encoder_hidden_states=patches).logits
    assert torch.allclose(found, expected, atol=1e-4)
    assert set(model.trainable) == {
        f"cross.{layer}.{part}.{kind}"
        for layer in range(2)
        for part in ("query", "key", "value", "out")
        for kind in ("weight", "bias")
    }


def test_a_published_smallcap_on_opt_is_loaded(torch: Any, make_decoder: MakeDecoder, tmp_path: Path) -> None:
    from recap.experiments.baselines.smallcap import SmallCap

    tokenizer = make_decoder().tokenizer
    opt = _tiny("opt", len(tokenizer))
    state = dict(opt.state_dict())
    shapes = {"q_proj": (8, 32), "k_proj": (8, 7), "v_proj": (8, 7), "out_proj": (32, 8)}
    for layer in range(2):
        start = f"model.decoder.layers.{layer}.encoder_attn"
        for name, shape in shapes.items():
            state[f"{start}.{name}.weight"], state[f"{start}.{name}.bias"] = torch.randn(shape), torch.randn(shape[0])
        state[f"{start}_layer_norm.weight"], state[f"{start}_layer_norm.bias"] = torch.randn(32), torch.randn(32)
    _publish(torch, tmp_path, {**opt.config.to_dict(), "model_type": "this_opt"}, state)
    model = SmallCap.from_published(tmp_path, tokenizer).eval()
    cross = model.cross[1]
    hidden, patches = torch.randn(2, 3, 32), torch.randn(2, 5, 7)
    start = "model.decoder.layers.1.encoder_attn"

    def project(name: str, rows: Any) -> Any:
        return rows @ state[f"{start}.{name}.weight"].T + state[f"{start}.{name}.bias"]

    norm = torch.nn.functional.layer_norm(
        hidden, (32,), state[f"{start}_layer_norm.weight"], state[f"{start}_layer_norm.bias"]
    )
    query, key, value = (
        project(name, rows).view(2, -1, 4, 2).transpose(1, 2)
        for name, rows in (("q_proj", norm), ("k_proj", patches), ("v_proj", patches))
    )
    weights = (query @ key.transpose(2, 3) / 8**0.5).softmax(-1)  # a head of OPT itself is 8 wide
    expected = project("out_proj", (weights @ value).transpose(1, 2).reshape(2, 3, 8))
    assert torch.allclose(cross(hidden, patches), expected, atol=1e-4)


def _publish(torch: Any, folder: Path, decoder: dict[str, Any], state: dict[str, Any]) -> None:
    """Write a folder as SmallCap's are: an encoder that nobody needs, and a decoder."""
    config = {"model_type": "smallcap", "encoder": {"model_type": "clip"}, "decoder": decoder}
    (folder / "config.json").write_text(json.dumps(config))
    whole = {f"decoder.{name}": tensor for name, tensor in state.items()}
    torch.save({**whole, "encoder.post_layernorm.weight": torch.ones(3)}, folder / "pytorch_model.bin")


def test_files_that_are_something_else_are_refused(torch: Any, make_decoder: MakeDecoder, tmp_path: Path) -> None:
    from recap.experiments.baselines.clipcap import ClipCap
    from recap.experiments.baselines.smallcap import SmallCap

    tokenizer = make_decoder().tokenizer
    with pytest.raises(InputError, match="no such file"):
        ClipCap.from_published(tmp_path / "absent.pt", tokenizer)
    (tmp_path / "text.pt").write_text("not weights")
    with pytest.raises(InputError, match="could not be read as weights"):
        ClipCap.from_published(tmp_path / "text.pt", tokenizer)
    torch.save({"clip_project.prefix_const": torch.ones(2)}, tmp_path / "transformer.pt")
    with pytest.raises(InputError, match=r"transformer\.pt is no ClipCap checkpoint: it lacks gpt"):
        ClipCap.from_published(tmp_path / "transformer.pt", tokenizer)
    with pytest.raises(InputError, match=r"config\.json describes no SmallCap"):
        SmallCap.from_published(tmp_path, tokenizer)
    (tmp_path / "config.json").write_text(json.dumps({"decoder": {"model_type": "xglm"}}))
    with pytest.raises(InputError, match="'xglm', and only gpt2 and opt"):
        SmallCap.from_published(tmp_path, tokenizer)
