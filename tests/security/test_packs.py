"""Packs of strangers: they reach nothing outside their folder, take little memory, and say what is wrong with them."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from security.mutations import mutate_pack

from recap import ReCap
from recap.datasets import Sentence
from recap.encoders import Encoder
from recap.errors import PackError, RecapError
from recap.files import file_sha256
from recap.packs import captions
from recap.packs import folder as pack
from recap.packs.register import Pictures
from recap.packs.verify import verify
from recap.types import Pair

MANIFEST = "datastore/manifest.json"


def change(path: Path, edit: Callable[[Any], None]) -> None:
    values = json.loads(path.read_text())
    edit(values)
    path.write_text(json.dumps(values))


def sentence(text: str = "one more red wall") -> list[Sentence]:
    return [Sentence(text, "mine", "", False)]


@pytest.mark.parametrize("seed", range(60))
def test_a_damaged_pack_works_or_says_why_not(
    folder: Path, encoder: Encoder, pairs: list[Pair], new_pictures: dict[str, Path], seed: int
) -> None:
    mutate_pack(folder, random.Random(seed))
    list(verify(folder))
    with suppress(RecapError, OSError):
        ReCap.from_pretrained(folder).caption(new_pictures["red"])
        captions.add(folder, sentence(), encoder.text)
        captioner = ReCap.from_pretrained(folder)
        captioner.forget([pairs[0].id])
        captioner.save_pretrained(folder)


@pytest.mark.parametrize("name", ["../victim.parquet", "/tmp/victim", "victim", "..", "", "segment-1.parquet/../x"])
def test_a_manifest_names_only_files_of_its_own(folder: Path, tmp_path: Path, encoder: Encoder, name: str) -> None:
    victim = folder / "victim.parquet"
    shutil.copyfile(folder / "datastore" / "segment-00001.parquet", victim)
    before = victim.read_bytes()
    change(folder / MANIFEST, lambda manifest: manifest["segments"][0]["captions"].update(name=name))
    with pytest.raises(PackError, match="not the name of a file of a store"):
        captions.add(folder, sentence(), encoder.text)
    assert victim.read_bytes() == before


@pytest.mark.parametrize("elsewhere", ["/other/pack/datastore", "../other/datastore", 5, ["milvus:x"], "file:x"])
def test_captions_are_in_the_pack_or_in_milvus(
    folder: Path, fitted: Callable[[], ReCap], tmp_path: Path, encoder: Encoder, elsewhere: object
) -> None:
    """An absolute path made ``datastore add`` change another pack."""
    fitted().save_pretrained(tmp_path / "other")
    if isinstance(elsewhere, str):
        elsewhere = elsewhere.replace("/other/pack", str(tmp_path / "other"))
    before = file_sha256(tmp_path / "other" / MANIFEST)
    change(folder / pack.CONFIG, lambda config: config.update(datastore=elsewhere))
    with pytest.raises(PackError, match="an address that begins with milvus:"):
        captions.add(folder, sentence(), encoder.text)
    assert file_sha256(tmp_path / "other" / MANIFEST) == before


def test_links_in_a_pack_are_not_written_through(folder: Path, tmp_path: Path, encoder: Encoder) -> None:
    mine = {}
    for name in ("README.md", "config.json", MANIFEST):
        kept = tmp_path / f"mine-{Path(name).name}"
        shutil.copyfile(folder / name, kept)
        (folder / name).unlink()
        (folder / name).symlink_to(kept)
        mine[kept] = kept.read_bytes()
    captions.add(folder, sentence(), encoder.text)
    captions.move(folder, "half")
    assert {path: path.read_bytes() for path in mine} == mine
    assert not [check.problem for check in verify(folder) if check.problem]


def test_a_link_in_the_place_of_a_lock_is_refused(folder: Path, tmp_path: Path, encoder: Encoder) -> None:
    """Taking the lock would empty the file."""
    precious = tmp_path / "precious"
    precious.write_text("precious")
    (folder / "datastore" / ".lock").unlink(missing_ok=True)
    (folder / "datastore" / ".lock").symlink_to(precious)
    with pytest.raises((PackError, OSError)):
        captions.add(folder, sentence(), encoder.text)
    assert precious.read_text() == "precious"


def test_a_linked_datastore_is_not_changed(
    folder: Path, fitted: Callable[[], ReCap], tmp_path: Path, encoder: Encoder
) -> None:
    fitted().save_pretrained(tmp_path / "other")
    shutil.rmtree(folder / "datastore")
    (folder / "datastore").symlink_to(tmp_path / "other" / "datastore")
    with pytest.raises(PackError, match="symbolic link"):
        captions.add(folder, sentence(), encoder.text)


def rewrite_captions(folder: Path, columns: dict[str, Any]) -> None:
    """Put another table in the place of the captions, with a manifest that agrees."""
    path = folder / "datastore" / "segment-00001.parquet"
    known = pyarrow.parquet.read_table(path)
    table = pyarrow.table({name: columns.get(name, known[name]) for name in known.column_names})
    pyarrow.parquet.write_table(table, path, compression="zstd")
    stored = {"bytes": path.stat().st_size, "sha256": file_sha256(path)}
    change(folder / MANIFEST, lambda manifest: manifest["segments"][0]["captions"].update(stored))


def repeated(text: str, count: int) -> Any:
    codes = pyarrow.array(np.zeros(count, np.int32))
    return pyarrow.DictionaryArray.from_arrays(codes, pyarrow.array([text], pyarrow.large_string()))


@pytest.mark.parametrize("column", ["text", "source", "image_id"])
def test_a_small_table_of_long_texts_is_not_written_out(folder: Path, column: str) -> None:
    """A table of a few kilobytes that says a megabyte again and again took all memory."""
    rows = len(pack.read_own_datastore(folder))
    rewrite_captions(folder, {column: repeated("x" * 20_000_000, rows)})
    assert (folder / "datastore" / "segment-00001.parquet").stat().st_size < 100_000
    with pytest.raises(PackError, match="far more than captions take"):
        ReCap.from_pretrained(folder)


def test_more_rows_than_promised_are_not_read(folder: Path) -> None:
    path = folder / "datastore" / "segment-00001.parquet"
    known = pyarrow.parquet.read_table(path)
    many = 1_000_000
    numbers = {"id": np.arange(many), "synthetic": np.zeros(many, bool)}
    columns = {name: numbers[name] if name in numbers else repeated("a", many) for name in known.column_names}
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    stored = {"bytes": path.stat().st_size, "sha256": file_sha256(path)}
    change(folder / MANIFEST, lambda manifest: manifest["segments"][0]["captions"].update(stored))
    with pytest.raises(PackError, match="holds 1000000 rows"):
        ReCap.from_pretrained(folder)


@pytest.mark.parametrize("values", [[1.5], [None], ["a"]])
def test_columns_of_another_kind_are_named(folder: Path, values: list[object]) -> None:
    rows = len(pack.read_own_datastore(folder))
    rewrite_captions(folder, {"id": pyarrow.array(values * rows)})
    with pytest.raises(PackError, match=r"the column id is|damaged|readable table"):
        ReCap.from_pretrained(folder)


def test_a_table_of_pictures_is_as_large_as_it_says(folder: Path) -> None:
    path = folder / "pictures.parquet"
    known = pyarrow.parquet.read_table(path)
    rows = known.num_rows
    columns = {name: known[name] for name in known.column_names} | {"source": repeated("x" * 20_000_000, rows)}
    pyarrow.parquet.write_table(pyarrow.table(columns), path, compression="zstd")
    pictures = Pictures.load(folder)
    assert pictures is not None
    with pytest.raises(PackError, match="far more than captions take"):
        list(pictures)


@pytest.mark.parametrize("name", ["config.json", MANIFEST, "confidence.json"])
@pytest.mark.parametrize("content", ["[" * 300_000, '{"a":' * 300_000, "1" * 50_000, '"\\ud800"'])
def test_strange_json_is_an_error_of_the_pack(folder: Path, name: str, content: str) -> None:
    (folder / name).write_text(content)
    with pytest.raises(PackError, match=Path(name).name):
        ReCap.from_pretrained(folder)


def test_parts_that_do_not_fit_each_other_are_told(
    folder: Path, shared_encoder_folder: Path, pairs: list[Pair]
) -> None:
    other = ReCap.fit(pairs, encoder=f"onnx:{shared_encoder_folder}", language_model=None)
    other.alignment.save(folder / pack.ALIGNMENT)
    with pytest.raises(PackError, match=r"alignment.safetensors is of \(12, 12\) dimensions"):
        ReCap.from_pretrained(folder)


def test_unfinished_work_is_not_looked_for_elsewhere(folder: Path, tmp_path: Path, encoder: Encoder) -> None:
    """The lock of a folder that is a link is a file in another folder."""
    (tmp_path / "mine").mkdir()
    (folder / "datastore" / ".pending-00aa").symlink_to(tmp_path / "mine")
    captions.add(folder, sentence(), encoder.text)
    assert not list((tmp_path / "mine").iterdir())
    assert not (folder / "datastore" / ".pending-00aa").is_symlink()
