"""DAL and the searches on a tiny data set in the shape of Flickr8k, with the writer of the package."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from recap.datastore import Datastore
from recap.errors import InputError
from recap.experiments import Setup, run_experiment, write_outcome
from recap.experiments.base import Outcome
from recap.experiments.data import Bench, photo_number
from recap.experiments.search import METRICS, DrawnOnce, Search, best_k, ks, value
from recap.experiments.searches import narratives, source_rows
from recap.experiments.table import Row, paper_table
from recap.language import Decoding
from recap.language.writer import WriterModel
from recap.metrics import cider_d
from recap.types import Draft, Pair, Prompt

pytest.importorskip("matplotlib")

SPLITS = {"train": "0", "dev": "1", "test": "2"}
CHEAP = {"metrics": "bleu-1,cider-d,aclip-s,refaclip-s"}
"""All that needs no parser."""

Run = Callable[..., Outcome]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, make_flickr8k: Callable[..., Path], pairs: list[Pair]) -> Path:
    """One picture of each colour in each split, and the same under another name as more captions."""
    folder = make_flickr8k(tmp_path_factory.mktemp("data") / "flickr8k", pairs, SPLITS)
    shutil.copytree(folder / "flickr8k" / "images", folder / "flickr30k" / "images")
    images = [{"filename": p.id, "split": "train", "sentences": [{"raw": t} for t in p.captions]} for p in pairs]
    (folder / "flickr30k" / "dataset_flickr30k.json").write_text(json.dumps({"images": images}))
    (folder / "narratives").mkdir()
    told = [
        {"dataset_id": "Flickr8k", "image_id": Path(pair.id).stem, "caption": f"{pair.captions[0]}. {pair.captions[1]}"}
        for pair in pairs
    ]
    file = folder / "narratives" / "x_localized_narratives.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in told))
    return folder


@pytest.fixture
def run(data: Path, encoder_folder: Path, own_cache: None) -> Run:
    def run(name: str, model: str | None = None, **options: str) -> Outcome:
        setup = Setup(data, encoder=f"onnx:{encoder_folder}", language_model=model, options={**CHEAP, **options})
        return run_experiment(name, setup)

    return run


def ours(outcome: Outcome, name: str) -> list[Row]:
    return list(outcome.tables[name].sections[0].rows)


def labels(outcome: Outcome, name: str) -> list[str]:
    return [row.label for row in ours(outcome, name)]


def test_dal_shows_every_round_and_is_the_same_every_time(run: Run, tmp_path: Path) -> None:
    options = {"filter": "aclip-s,cider-d", "rounds": "1", "ks": "3", "samples": "3"}
    one = run("dal", **options, state=str(tmp_path / "state"), packs=str(tmp_path / "packs"))
    two = run("dal", **options)
    table = one.tables["dal"]
    assert [section.title for section in table.sections] == ["filtered by aCLIP-S", "filtered by CIDEr-D"]
    assert [row.label for row in table.sections[0].rows][:2] == ["0", "1"]
    assert [column.name for column in table.columns][-4:] == ["CIDEr-D", "SPICE", "aCLIP-S", "RefaCLIP-S"]
    for number, outcome in enumerate((one, two)):
        write_outcome(outcome, tmp_path / str(number))
    names = {path.name for path in (tmp_path / "0").iterdir()}
    assert {"dal.txt", "dal-test.md", "dal-metrics.png", "dal-prompt.svg"} <= names
    for name in names:
        assert (tmp_path / "0" / name).read_bytes() == (tmp_path / "1" / name).read_bytes(), name
    store = Datastore.load(tmp_path / "packs" / "aclip-s" / "datastore")
    assert len(store.find(synthetic=True)) == table.sections[0].rows[-1].cells[2].value
    with pytest.raises(InputError, match="unknown metric to filter by 'bleu'"):
        run("dal", filter="bleu")


def test_k_is_searched_greedily_and_the_best_is_named(run: Run, data: Path, encoder_folder: Path) -> None:
    outcome = run("search-k", ks="1,4")
    rows = {row.label: row for row in ours(outcome, "search-k")}
    assert list(rows) == ["1", "4", "18"], "with the paper's for Flickr30k"
    best = max((1, 4, 18), key=lambda k: (value(rows[str(k)], "CIDEr-D"), -k))
    gain = value(rows[str(best)], "CIDEr-D") - value(rows["18"], "CIDEr-D")
    assert f"k = {best}, {gain:+.1f} against the paper's k = 18" in outcome.tables["search-k"].notes[0]
    search = Search(Setup(data, encoder=f"onnx:{encoder_folder}"))
    greedy = search.captioner.configured(k=4, pool=4, temperature=0.0)
    texts = [caption.text for caption in greedy.caption_vectors(search.pictures.images)]
    assert value(rows["4"], "CIDEr-D") == pytest.approx(100 * cider_d(texts, search.pictures.captions).value)
    assert outcome.figures.keys() == {"search-k"}
    alone = run("search-k", "none", ks="1,4")
    stated = "map procrustes, selection rule consensus, candidates among the k nearest captions, k of the row."
    assert f"Captions: {stated}" in alone.tables["search-k"].notes


def test_a_grid_retrieves_embeds_and_writes_nothing_twice(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[object] = []
    searched: list[bytes] = []
    write, find = WriterModel.write, Datastore.search

    def noted(self: WriterModel, prompts: Sequence[Prompt], decoding: Decoding) -> list[list[Draft]]:
        written.extend((prompt.text, tuple(prompt.pool), decoding) for prompt in prompts)
        return write(self, prompts, decoding)

    def noted_search(self: Datastore, queries: object, *args: object, **options: object) -> object:
        searched.extend(query.tobytes() for query in queries)
        return find(self, queries, *args, **options)

    monkeypatch.setattr(WriterModel, "write", noted)
    monkeypatch.setattr(Datastore, "search", noted_search)
    grid = {"temperatures": "0.1,0.5", "numbers": "2,4"}
    outcome = run("search-temperature", **grid, k="3")
    assert labels(outcome, "search-temperature")[:5] == ["0 x 1", "0.1 x 2", "0.5 x 2", "0.1 x 4", "0.5 x 4"]
    assert labels(outcome, "search-temperature")[5:] == ["paper: k 18, 0.3 x 20", "pack: k 13, 0.5 x 10"]
    assert len(written) == len(set(written)) == 6 * 5, "greedy, two temperatures, the paper's and the pack's"
    assert len(searched) == len(set(searched)) == 6


def test_fewer_samples_are_the_first_of_more() -> None:
    class Counting:
        name, completes = "counting", False

        def write(self, prompts: Sequence[Prompt], decoding: Decoding) -> list[list[Draft]]:
            return [[Draft(f"{prompt.text} {number}", 0.0) for number in range(decoding.samples)] for prompt in prompts]

    (drafts,) = DrawnOnce(Counting(), 5).write([Prompt("a", ["b"])], Decoding(samples=2))
    assert [draft.text for draft in drafts] == ["a 0", "a 1"]


def test_the_smallest_of_the_best_ks_is_taken(data: Path, encoder_folder: Path) -> None:
    pictures = Search(Setup(data, encoder=f"onnx:{encoder_folder}")).pictures
    right, wrong = [texts[0] for texts in pictures.captions], ["somebody"] * len(pictures.ids)
    assert best_k(pictures, {9: right, 4: right, 1: wrong}) == 4


def test_values_of_k_come_from_the_option_the_paper_or_here(data: Path) -> None:
    assert ks(Setup(data, on="coco")) == (10, 11, 12, 13, 14, 15, 16, 17)
    assert 100 in ks(Setup(data))
    assert ks(Setup(data, options={"ks": "2,3"})) == (2, 3)
    with pytest.raises(InputError, match="ks=many: expected a whole number"):
        ks(Setup(data, options={"ks": "many"}))


def test_k_is_chosen_on_dev_whatever_is_captioned(data: Path, encoder_folder: Path) -> None:
    setup = Setup(data, encoder=f"onnx:{encoder_folder}", language_model="writer", options={"ks": "2,3"})
    on_test = Search(setup, split="test")
    assert on_test.pictures.part == "test"
    texts = on_test.tried_ks
    assert sorted(texts) == [2, 3, 18]
    on_dev = Search(setup)
    assert texts == on_dev.tried_ks
    assert on_test.k == on_dev.k == best_k(on_dev.pictures, texts)


def test_columns_that_were_not_asked_for_are_empty_and_not_drawn(run: Run) -> None:
    for name in ("search-k", "search-decoding"):
        outcome = run(name, metrics="cider-d", **({"ks": "2,3"} if name == "search-k" else {"k": "3", "samples": "2"}))
        cells = dict(zip(METRICS, ours(outcome, name)[0].cells, strict=True))
        assert cells["CIDEr-D"].value is not None
        assert cells["RefaCLIP-S"].value is None
        assert outcome.figures[name].axes


def test_every_decoding_and_every_order_has_a_row(run: Run) -> None:
    decoding = run("search-decoding", k="3", samples="3")
    assert labels(decoding, "search-decoding") == ["Sampling", "Topk", "Greedy", "Nucleus, l=1", "Nucleus"]
    ordering = run("search-ordering", "writer", k="3", samples="3")
    assert labels(ordering, "search-ordering") == ["worst-to-best", "best-to-worst", "random"]
    greedy = [row.cells for row in ours(run("search-ordering", "writer", k="3", temperature="0"), "search-ordering")]
    assert greedy[0] == greedy[1] == greedy[2], "the writer reads captions, not the prompt"


def test_encoders_and_language_models_one_after_the_other(
    run: Run, encoder_folder: Path, shared_encoder_folder: Path
) -> None:
    names = f"onnx:{encoder_folder};onnx:{shared_encoder_folder}"
    encoders = run("search-encoder", encoders=names, k="3", samples="3")
    assert labels(encoders, "search-encoder") == names.split(";")
    assert [row.cells[-2].value for row in ours(encoders, "search-encoder")] == [3, 3]
    assert encoders.tables["search-encoder"].sections[1].rows[0].cells[-1].value == "1M"
    models = run("search-lm", models="none,writer", k="3", samples="3")
    assert labels(models, "search-lm") == ["none, k = 100", "writer, k = 3"]
    assert value(ours(models, "search-lm")[0], "BLEU@1") > 50, "a caption of the datastore, though of any colour"


def test_levels_of_language_have_their_own_datastores(run: Run, data: Path) -> None:
    outcome = run("search-level", ks="2")
    table = outcome.tables["search-level"]
    titles = [section.title.rpartition(": ")[2] for section in table.sections[:3]]
    assert titles == ["Single Captions", "All Captions", "Localized Narratives"]
    assert [len(section.rows) for section in table.sections[:3]] == [1, 6, 6]
    assert narratives(data / "narratives", ["red0.png", "pink.png"])[0][0].startswith("a red wall. the wall is red")
    assert narratives(data / "narratives", ["pink.png"]) == [()]
    assert narratives(data / "nowhere", ["red0.png"]) == [()]


def test_other_sources_are_counted_and_missing_ones_named(run: Run) -> None:
    outcome = run("search-sources", k="4", samples="3")
    alone, both = ours(outcome, "search-sources")
    assert (alone.label, both.label) == ("Flickr8k", "Flickr8k + Flickr30k")
    assert (alone.cells[-2].value, both.cells[-2].value) == (18, 18 + 54)
    assert alone.cells[-1].value == 0
    assert 0 < both.cells[-1].value <= 100
    notes = outcome.tables["search-sources"].notes
    assert notes[0] == "Of photographs that both data sets have, those of dev and test are left out."
    assert notes[1] == "Not in the data folder: MS-COCO, VizWiz, MSRVTT, chest x-rays."
    with pytest.raises(InputError, match=r"dataset_coco\.json is missing"):
        run("search-sources", sources="coco", k="4")


def test_captions_of_another_data_set_need_no_pictures_and_leak_nothing_of_the_test_photographs(
    data: Path, encoder_folder: Path, tmp_path: Path
) -> None:
    """Flickr30k as Multi30k has it: text alone, and some of its photographs are Flickr8k's."""
    home = tmp_path / "flickr30k"
    (home / "raw").mkdir(parents=True)
    (home / "image_splits").mkdir()
    (home / "image_splits" / "train_images.txt").write_text("1000268201.jpg\n36979.jpg\n")
    for number in range(1, 6):
        lines = f"a child climbs {number}\na dog on  grass {number}\n"
        (home / "raw" / f"train.{number}.en.gz").write_bytes(gzip.compress(lines.encode()))
    bench = Bench(Setup(tmp_path, encoder=f"onnx:{encoder_folder}"))
    store = bench.caption_store("flickr30k", without={photo_number("1000268201_693b08cb0e.jpg")})
    assert sorted(row.text for row in store) == [f"a dog on grass {number}" for number in range(1, 6)]
    assert {row.image_id for row in store} == {"36979"}
    assert len(bench.caption_store("flickr30k")) == 10
    (home / "raw" / "train.5.en.gz").write_bytes(gzip.compress(b"a child\n"))
    with pytest.raises(InputError, match=r"train\.5\.en\.gz: 1 captions for 2 pictures"):
        bench.caption_store("flickr30k")


def test_the_papers_sources_are_its_five_rows_and_synthetic_captions_come_last() -> None:
    f30, vw, mv = "Flickr30k", "VizWiz", "MSRVTT"
    people = [(), (f30,), (f30, vw), (f30, mv), (f30, vw, mv)]
    assert source_rows([f30, vw, mv]) == people
    assert source_rows([f30, vw, mv, "DAL"]) == [*people, ("DAL",), (f30, vw, mv, "DAL")]
    assert source_rows(["DAL"]) == [(), ("DAL",)]
    assert len(paper_table("sources")["sections"]["MS-COCO"]) == len(people)


def test_synthetic_captions_of_the_loop_are_a_source(run: Run, tmp_path: Path) -> None:
    packs = tmp_path / "packs"
    loop = run("dal", filter="aclip-s", rounds="1", ks="3", samples="3", packs=str(packs))
    added = loop.tables["dal"].sections[0].rows[-1].cells[2].value
    assert added > 0
    outcome = run("search-sources", k="3", samples="2", sources="flickr30k", synthetic=str(packs / "aclip-s"))
    rows = {row.label: row.cells for row in ours(outcome, "search-sources")}
    assert list(rows) == [f"Flickr8k{more}" for more in ("", " + Flickr30k", " + DAL", " + Flickr30k + DAL")]
    assert rows["Flickr8k + DAL"][-2].value == 18 + added
    with pytest.raises(InputError, match="holds no synthetic captions"):
        run("search-sources", k="3", synthetic=str(_plain_pack(packs / "aclip-s", tmp_path / "plain")))


def _plain_pack(pack: Path, copy: Path) -> Path:
    shutil.copytree(pack, copy)
    store = Datastore.load(copy / "datastore")
    store.remove(store.find(synthetic=True))
    store.save(copy / "datastore")
    return copy


class Echo:
    """A model of the paper: any but the writer."""

    name, completes, selection = "hf:google/flan-t5-large", False, "consensus"


def test_models_of_the_paper_run_the_papers_method(data: Path, encoder_folder: Path, tmp_path: Path) -> None:
    """OLS, the aligned cosine, and the k, temperature and number of samples that the paper found for Flickr30k."""
    search = Search(Setup(data, encoder=f"onnx:{encoder_folder}"))
    search.__dict__["model"] = Echo()
    captioner = search.plain(search.store)
    assert captioner.alignment.method == captioner.settings.method == "ols"
    assert (captioner.selection, captioner.settings.candidates) == ("cosine", "lm")
    drawn = captioner.settings.decoding
    assert (search.k, drawn.temperature, drawn.samples) == (18, 0.3, 20)
    asked = Search(Setup(data, encoder=f"onnx:{encoder_folder}", options={"settings": "pack", "k": "7"}))
    asked.__dict__["model"] = Echo()
    assert (asked.k, asked.settings.method, asked.settings.decoding.temperature) == (7, "procrustes", 0.5)


@pytest.mark.parametrize(
    ("name", "options", "stated"),
    [
        ("search-decoding", {"samples": "2", "metrics": "cider-d"}, "temperature 0.3, samples 2, k 18"),
        ("search-k", {"ks": "2", "metrics": "cider-d"}, "temperature 0, samples 1, k of the row"),
        ("metric-correlation", {"samples": "2", "metrics": "bleu-1,cider-d"}, "temperature 0.3, samples 2, k 18"),
        ("dal", {"ks": "2", "rounds": "1", "samples": "2"}, "temperature 0.3, samples 2, k of the row"),
    ],
)
def test_a_table_states_map_rule_temperature_samples_and_k(
    run: Run, name: str, options: dict[str, str], stated: str
) -> None:
    notes = run(name, settings="paper", **options).tables[name].notes
    assert f"Captions: map ols, selection rule cosine, {stated}." in notes


def test_columns_are_those_of_the_paper(run: Run) -> None:
    table = run("search-k", ks="1").tables["search-k"]
    assert [column.name for column in table.columns] == list(METRICS)
    paper = {row.label: row.cells for row in table.sections[1].rows}
    assert paper["18"][3].value == 66.2
    assert table.render("table") == run("search-k", ks="1").tables["search-k"].render("table")
