"""The writer: equal to the model it was exported from, and able to say what the captions say."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

import numpy as np
import onnx
import pytest

from recap.errors import AssetError
from recap.language import Decoding, load_language_model
from recap.language.prompt import BEGIN, END, PAD, SPECIAL, UNKNOWN, read
from recap.language.words import Phrases, words
from recap.language.writer import FOLDER, STRANGE, TOGETHER, WriterModel, _followers, choose
from recap.types import Prompt

torch = pytest.importorskip("torch")

TOOLS = Path(__file__).parents[2] / "tools"
WORDS = [*SPECIAL, "a", "dog", "cat", "runs", "on", "grass", "red", "ball", "the", "dogs"]
NUMBERS = {word: number for number, word in enumerate(WORDS)}
CAPTIONS = ["A dog runs on the grass.", "A red ball on grass.", "The zorp runs.", "A dog and a cat."]
GREEDY = Decoding(temperature=0, max_tokens=12)
SAMPLED = Decoding(samples=4, temperature=1.0, top_p=1.0, max_tokens=12, seed=3)
DETAILS, PATCHES = [2.0, -1.5, 0.1, 3.0, -3.0, 0.6], [1.5, -2.0, 4.0]
Looked: TypeAlias = tuple[list[float] | None, list[float] | None]
"""Details and patches of the three places."""


@pytest.fixture(scope="module")
def tools() -> Iterator[None]:
    sys.path.insert(0, str(TOOLS))
    yield
    sys.path.remove(str(TOOLS))


@pytest.fixture(scope="module")
def made(tools: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[object, WriterModel]:
    """Return a small writer with random weights, and the same exported."""
    from writer.export import write_config, write_onnx, write_phrases
    from writer.model import Shape, Writer

    torch.manual_seed(0)
    shape = Shape(len(WORDS), vector=6, width=16, heads=2, layers=2, vector_tokens=2, places=3, detail=2, patch=1)
    model = Writer(shape).eval()
    torch.nn.init.normal_(model.patch.weight)
    folder = tmp_path_factory.mktemp("writer")
    write_onnx(model, folder)
    write_config(model, WORDS, "our encoder", ("our sight", "closer sight"), folder)
    every = np.stack(np.meshgrid(*[np.arange(len(WORDS))] * 3), -1).reshape(-1, 3)
    write_phrases([list(three) for three in every for _ in "abc"], len(WORDS), folder)
    return model, WriterModel(folder)


def prompt(
    captions: list[str] = CAPTIONS,
    vector: list[float] | None = None,
    space: str = "our encoder",
    details: list[float] | None = None,
    sight: str = "our sight",
) -> Prompt:
    point, seen = (None if values is None else np.array(values, np.float32) for values in (vector, details))
    return Prompt("\n".join(captions), captions, point, space, seen, sight)


def reference_greedy(
    model: object, captions: list[str], vector: list[float] | None, looked: Looked = (None, None)
) -> tuple[list[int], float]:
    """Return what the torch model writes reading the whole sentence again for every word, and its log-probability."""
    number = {word: place for place, word in enumerate(WORDS)}
    outside: dict[str, int] = {}
    numbered = [
        [number.get(w, len(WORDS) + outside.setdefault(w, len(outside)) if w not in number else 0) for w in words(c)]
        for c in captions
    ]
    reading = read(numbered, len(WORDS))
    tensors = [torch.from_numpy(part)[None] for part in (reading.tokens, reading.shares, reading.places, reading.ranks)]
    point = torch.tensor([vector or [0.0] * 6])
    known = torch.tensor([0.0 if vector is None else 1.0])
    placed = [torch.tensor([part or [0.0] * size]) for part, size in zip(looked, (6, 3), strict=True)]
    flags = [torch.tensor([0.0 if part is None else 1.0]) for part in looked]
    sentence, logprob = [BEGIN], 0.0
    with torch.no_grad():
        picture = (point, known, placed[0], flags[0], placed[1], flags[1])
        memory = model.remember(*tensors, *picture, None)  # type: ignore[attr-defined]
        keys = model.copy_key(memory[:, 5:])  # type: ignore[attr-defined]
        while len(sentence) < 13:
            state = model.decode(torch.tensor([[sentence]]), memory, None)[0, :, -1]  # type: ignore[attr-defined]
            p = model.probabilities(state, keys[0], tensors[0])[0]  # type: ignore[attr-defined]
            p[[PAD, BEGIN, UNKNOWN]] = 0
            p[[after for before, after in pairwise(sentence[1:]) if before == sentence[-1]] + sentence[-1:]] = 0
            p[[said for said in sentence[1:] if said < len(WORDS) and WORDS[said] not in ("a", "on", "the")]] = 0
            logprob += float(p.max().log())
            if int(p.argmax()) == END:
                break
            sentence.append(int(p.argmax()))
    return sentence[1:], logprob


@pytest.mark.parametrize("vector", [None, [0.5, -0.5, 0.1, 0.2, 0.3, 0.6]])
@pytest.mark.parametrize("looked", [(None, None), (DETAILS, None), (DETAILS, PATCHES)])
def test_exported_model_writes_what_the_torch_model_writes(
    made: tuple[object, WriterModel], vector: list[float] | None, looked: Looked
) -> None:
    model, exported = made
    expected, logprob = reference_greedy(model, CAPTIONS, vector, looked)
    names = [*WORDS, "and", "zorp"]
    draft = exported.write([_seen_as(looked, vector)], GREEDY)[0][0]
    slots = {len(WORDS) + place: word for place, word in enumerate(sorted(["zorp", "and"], key=_votes))}
    text = " ".join(slots.get(number) or names[number] for number in expected)
    assert draft.text.lower().rstrip(".") == text
    assert draft.logprob == pytest.approx(logprob, abs=0.02)  # the exported weights are rounded


def _seen_as(looked: Looked, vector: list[float] | None) -> Prompt:
    """Return a prompt with details, and behind those of each place its patch where there are some."""
    details, patches = looked
    if details is None or patches is None:
        return prompt(vector=vector, details=details)
    both = [number for place, patch in enumerate(patches) for number in (*details[2 * place : 2 * place + 2], patch)]
    return prompt(vector=vector, details=both, sight="closer sight")


def test_patches_say_more_than_details_alone(made: tuple[object, WriterModel]) -> None:
    _, exported = made
    (closer,), (nearer,), (plain,) = (
        exported.write([_seen_as((DETAILS, patches), None)], SAMPLED) for patches in (PATCHES, [-9.0, 5.0, 2.0], None)
    )
    assert len({tuple(draft.logprob for draft in drafts) for drafts in (closer, nearer, plain)}) == 3


def _votes(word: str) -> tuple[int, int]:
    """Order as ``read`` does: "zorp" stands in the third caption and "and" in the fourth."""
    return (["zorp", "and"].index(word), 0)


def test_no_pair_of_words_is_said_twice(made: tuple[object, WriterModel]) -> None:
    _, exported = made
    for draft in exported.write([prompt()], Decoding(samples=50, temperature=2.0, top_p=1.0))[0]:
        pairs = list(pairwise(words(draft.text)))
        assert len(set(pairs)) == len(pairs)
        assert all(one != other for one, other in pairs)


def test_a_thing_is_not_said_again_unless_somebody_else_does(made: tuple[object, WriterModel]) -> None:
    _, exported = made

    def again(captions: list[str]) -> set[str]:
        drafts = exported.write([prompt(captions)], Decoding(samples=300, temperature=2.0, top_p=1.0))[0]
        forms = [[word.removesuffix("s") for word in words(draft.text)] for draft in drafts]
        return {form for said in forms for form in said if said.count(form) > 1}

    little = {"a", "on", "the"}
    assert again(CAPTIONS) & {*WORDS} == little
    assert again(["A dog and a red dog.", *CAPTIONS]) & {*WORDS} == {"dog", *little}


def test_what_nobody_wrote_costs_log_probability(made: tuple[object, WriterModel], tmp_path: Path) -> None:
    _, exported = made
    shutil.copytree(exported._folder, tmp_path, dirs_exist_ok=True)
    Phrases.of([[NUMBERS[word] for word in ("a", "dog", "runs")]]).save(tmp_path / "phrases.bin")
    strict = WriterModel(tmp_path)
    assert strict.fingerprint != exported.fingerprint
    drafts = exported.write([prompt()], SAMPLED)[0]
    said = {triple for caption in CAPTIONS for triple in _threes(caption)} | {("a", "dog", "runs")}
    known = {"<begin>", "<end>", *WORDS}
    for free, bound in zip(drafts, strict.write([prompt()], SAMPLED)[0], strict=True):
        strange = [three for three in _threes(free.text) if three not in said and known.issuperset(three)]
        assert bound.text == free.text
        assert bound.logprob == pytest.approx(free.logprob - STRANGE * len(strange), abs=1e-4)
    assert any(three not in said for draft in drafts for three in _threes(draft.text))


def _threes(text: str) -> list[tuple[str, ...]]:
    whole = ["<begin>", *words(text), "<end>"]
    return list(zip(whole, whole[1:], whole[2:], strict=False))


def test_cliches_are_not_completed(made: tuple[object, WriterModel], monkeypatch: pytest.MonkeyPatch) -> None:
    _, exported = made
    every = Decoding(samples=200, temperature=2.0, top_p=1.0)
    said = {pair for draft in exported.write([prompt()], every)[0] for pair in pairwise(words(draft.text))}
    assert ("a", "dog") in said
    monkeypatch.setattr(exported, "_cliches", _followers(["on a dog", "the a dog", "a zorp cat"], NUMBERS))
    triples = [
        found
        for draft in exported.write([prompt()], every)[0]
        for said in [words(draft.text)]
        for found in zip(said, said[1:], said[2:], strict=False)
    ]
    assert ("on", "a", "dog") not in triples
    assert ("the", "a", "dog") not in triples
    assert any(found[1:] == ("a", "dog") for found in triples)


def test_a_word_doubled_in_a_caption_may_be_said_twice(made: tuple[object, WriterModel]) -> None:
    _, exported = made
    drafts = exported.write([prompt(["A zorp zorp."])], Decoding(samples=200, temperature=2.0, top_p=1.0))[0]
    doubled = {one for draft in drafts for one, other in pairwise(words(draft.text)) if one == other}
    assert doubled == {"zorp"}


def test_vector_of_another_space_is_not_read(made: tuple[object, WriterModel]) -> None:
    _, exported = made
    vector = [0.5, -0.5, 0.1, 0.2, 0.3, 0.6]
    with_other = exported.write([prompt(vector=vector, space="another encoder")], SAMPLED)
    assert with_other == exported.write([prompt(vector=None)], SAMPLED)
    assert with_other != exported.write([prompt(vector=vector)], SAMPLED)


def test_details_of_another_sight_are_not_read(made: tuple[object, WriterModel]) -> None:
    _, exported = made
    details = [2.0, -1.5, 0.1, 3.0, -3.0, 0.6]
    with_other = exported.write([prompt(details=details, sight="another sight")], SAMPLED)
    assert with_other == exported.write([prompt()], SAMPLED)
    assert with_other != exported.write([prompt(details=details)], SAMPLED)


def test_drafts_depend_on_their_prompt_and_seed_only(made: tuple[object, WriterModel]) -> None:
    _, exported = made
    one, other = prompt(), prompt(["A cat."])
    together = exported.write([one, other], SAMPLED)
    assert together == [exported.write([one], SAMPLED)[0], exported.write([other], SAMPLED)[0]]
    assert [len(drafts) for drafts in together] == [4, 4]
    again = Decoding(samples=4, temperature=1.0, top_p=1.0, max_tokens=12, seed=4)
    assert exported.write([one], again)[0] != together[0]


def test_packaged_drafts_are_the_same_among_any_others() -> None:
    pieces = words("a dog runs on the green grass of a park while two men in red play with an old ball near some trees")
    captions = [" ".join(pieces[n % 7 : n % 7 + 2 + n]) for n in range(20)]
    prompts = [Prompt(f"prompt {n}", captions[: n % 9]) for n in range(TOGETHER + 5)]
    alone, together = WriterModel(threads=1), WriterModel(threads=2)
    for decoding in (Decoding(samples=7, temperature=1.0, max_tokens=9), GREEDY):
        expected = [alone.write([one], decoding)[0] for one in prompts]
        assert alone.write(prompts, decoding) == expected
        assert together.write(prompts[::-1], decoding) == expected[::-1]


def test_training_goes_on_from_an_exported_writer(made: tuple[object, WriterModel]) -> None:
    from writer.earlier import begin_with
    from writer.model import Writer

    model, exported = made
    other = Writer(model.shape).eval()  # type: ignore[attr-defined]
    begin_with(other, exported._folder, WORDS)
    theirs = other.state_dict()
    slots = {"words.weight": len(WORDS)}  # they have no spelling to be known by
    for name, value in model.state_dict().items():  # type: ignore[attr-defined]
        rows = slots.get(name)
        torch.testing.assert_close(theirs[name][:rows], value[:rows], atol=0.02, rtol=0.02, msg=name)


def test_prompts_without_words_are_written_about(made: tuple[object, WriterModel]) -> None:
    _, exported = made
    assert len(exported.write([prompt(["..."])], SAMPLED)[0]) == 4


def test_choose_draws_from_the_nucleus_only() -> None:
    p = np.zeros((1000, 8), np.float32)
    p[:, 4:] = [0.5, 0.3, 0.15, 0.05]
    uniform = np.linspace(0, 1, 1000, endpoint=False, dtype=np.float32)
    chosen, logprob = choose(p, uniform, Decoding(temperature=1.0, top_p=0.7))
    assert np.bincount(chosen, minlength=8).tolist() == pytest.approx([0, 0, 0, 0, 625, 375, 0, 0], abs=2)
    np.testing.assert_allclose(logprob, np.log(p[0, chosen]), rtol=1e-6)
    chosen, _ = choose(p, uniform, Decoding(temperature=0.5, top_p=1.0, top_k=2))
    assert np.bincount(chosen, minlength=8)[4:6].tolist() == pytest.approx([735, 265], abs=2)


def test_broken_folder_is_said(tmp_path: Path) -> None:
    with pytest.raises(AssetError, match="install recap again"):
        WriterModel(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({}))
    with pytest.raises(AssetError, match="install recap again"):
        WriterModel(tmp_path)
    shutil.copy(FOLDER / "config.json", tmp_path)
    shutil.copy(FOLDER / "phrases.bin", tmp_path)
    (tmp_path / "read.onnx").write_bytes(b"nothing")
    with pytest.raises(AssetError, match=r"read\.onnx.*install recap again"):
        WriterModel(tmp_path)


def test_packaged_writer_says_words_it_never_saw() -> None:
    writer = load_language_model("writer")
    assert writer is not None
    captions = [
        "A blicket on a wug.",
        "A small blicket is standing on a wug.",
        "A blicket sits on top of a large wug.",
        "A blicket standing on a green wug.",
        "A brown blicket on a wug.",
    ]
    for draft in writer.write([Prompt("words", captions)], Decoding(samples=5, temperature=0.3))[0]:
        assert "blicket" in draft.text
        assert "wug" in draft.text


def test_other_weights_have_another_fingerprint(made: tuple[object, WriterModel], tmp_path: Path) -> None:
    folder = made[1]._folder
    same, other = (shutil.copytree(folder, tmp_path / name) for name in ("same", "other"))
    network = onnx.load(other / "step.onnx")
    weight = next(tensor for tensor in network.graph.initializer if tensor.data_type == onnx.TensorProto.FLOAT)
    weight.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weight) + 1, weight.name))
    onnx.save(network, other / "step.onnx")
    assert WriterModel(same).fingerprint == made[1].fingerprint
    assert WriterModel(other).fingerprint != made[1].fingerprint
    packaged = load_language_model("writer")
    assert packaged is not None
    assert len({packaged.fingerprint, made[1].fingerprint}) == 2
