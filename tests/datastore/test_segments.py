from __future__ import annotations

import hashlib
import re
from collections import Counter

import numpy as np
import pyarrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recap.datastore import CaptionRow, Datastore, DiskStore, manifest, segments
from recap.datastore.base import Columns, Filters
from recap.datastore.manifest import column_numbers, count_joined
from recap.datastore.segments import SMALL_BLOCK, Segment, Segments
from recap.errors import InputError, PackError

SOURCES, IMAGES = ["", "a", "b"], ["", "i", "j", "k"]
POOL = np.eye(6, dtype=np.float32)

new = st.lists(st.tuples(st.sampled_from(SOURCES), st.booleans(), st.sampled_from(IMAGES)), max_size=6)
steps = st.lists(st.one_of(new, st.sets(st.integers(0, 30), max_size=4)), max_size=12)


@pytest.mark.parametrize("kind", [pyarrow.int8(), pyarrow.int32(), pyarrow.int64()])
def test_numbers_of_a_column_are_those_of_arrow(kind):
    column = pyarrow.array(range(20), kind)
    for part in (column, column.slice(3), column.slice(5, 7), column.slice(4, 0), pyarrow.array([], kind)):
        found = column_numbers(part)
        assert found.tolist() == part.to_pylist()
        assert found.dtype == str(kind)


@settings(max_examples=60, deadline=None)
@given(steps=steps, source=st.sampled_from([None, *SOURCES]), image=st.sampled_from([None, *IMAGES, "\ud800"]))
def test_segments_hold_what_a_dictionary_would(steps, source, image):
    segments, model = Segments(6, "float16"), {}
    for step in steps:
        if isinstance(step, set):
            gone = np.array(sorted(step & set(model)), dtype=np.int64)
            segments.remove(gone)
            for id in gone.tolist():
                del model[id]
        else:
            ids = segments.next_id + np.arange(len(step))
            rows = [CaptionRow(int(id), f"text {id}", *row) for id, row in zip(ids, step, strict=True)]
            columns = zip(*[(row.text, row.source, row.synthetic, row.image_id) for row in rows], strict=True)
            segments.add(ids, POOL[ids % 6], Columns(*columns) if rows else Columns([], [], [], []))
            model |= {row.id: row for row in rows}
    assert len(segments) == len(model)
    assert segments.rows(sorted(model)) == [model[id] for id in sorted(model)]
    np.testing.assert_array_equal(segments.vectors(sorted(model)), POOL[np.array(sorted(model), dtype=int) % 6])
    assert segments.sources() == Counter(row.source for row in model.values())
    filters = Filters.of(source, None, None)
    rows = [row for _, row in sorted(model.items()) if source in (None, row.source)]
    passing = [row for row in rows if image in (None, row.image_id)]
    assert segments.find(filters, image).tolist() == [row.id for row in passing]
    found = segments.find(filters, image, re.compile("[02468]$")).tolist()
    assert found == [row.id for row in passing if row.id % 2 == 0]
    for name, ids in zip(IMAGES, segments.ids_of_images(IMAGES), strict=True):
        assert ids.tolist() == [id for id, row in sorted(model.items()) if row.image_id == name]


def test_single_additions_do_not_pile_up(unit):
    store = Datastore(16)
    for number in range(300):
        store.add([f"{number}"], unit(1, seed=number))
    assert len(store._segments.all) <= 10
    np.testing.assert_array_equal(store.raw_vectors([7, 299]), np.concatenate([unit(1, seed=7), unit(1, seed=299)]))
    store.add([f"{number}" for number in range(SMALL_BLOCK + 1)], unit(SMALL_BLOCK + 1))
    large = store._segments.all[-1]
    store.add(["last"], unit(1))
    assert store._segments.all[-2] is large, "what is large is not copied again"


@pytest.mark.parametrize(
    ("rows", "added", "joined"),
    [([], 5, 0), ([10], 5, 1), ([11], 5, 0), ([40, 10, 5], 3, 2), ([40, 10, 5], 30, 3), ([200, 40], 1000, 1)],
)
def test_what_is_small_beside_what_follows_is_joined(rows, added, joined):
    assert count_joined(rows, added, 100) == joined


def test_what_is_no_unicode_is_refused_and_not_found(unit):
    store = Datastore(16)
    with pytest.raises(InputError, match="Unicode"):
        store.add(["fine"], unit(1), image_ids=["caf\udce9.jpg"])
    assert len(store) == 0
    store.add(["fine"], unit(1), image_ids=["caf\ufffd.jpg"])
    assert len(store.find(image_ids=["caf\udce9.jpg", "caf?.jpg"])) == 0
    assert store.search(unit(1), 1, exclude_image_ids=["caf\udce9.jpg"]).ids.tolist() == [[0]]


def test_the_hash_is_that_of_ids_and_texts(unit):
    store = Datastore(16)
    store.add(["a b", "ü\n", "gone", "c"], unit(4))
    store.remove([2])
    assert store.content_hash() == hashlib.sha256("0 a b\n1 ü\n\n3 c\n".encode()).hexdigest()


@pytest.fixture
def files(tmp_path, unit):
    """Where a segment of three captions may be; its vectors are there."""
    store = Datastore(16)
    store.add(["a", "b", "c"], unit(3))
    store.save(tmp_path)
    return tmp_path / "captions.arrow", tmp_path / "segment-00001.safetensors"


def write_arrow(path, compression=None, **columns):
    ids = np.arange(3)
    texts = pyarrow.array(["x"] * 3, pyarrow.large_string())
    known = {"id": ids, "text": texts, "source": texts.dictionary_encode(), "synthetic": ids > 5, "image_id": texts}
    batch = pyarrow.RecordBatch.from_pydict({**known, **columns})
    options = pyarrow.ipc.IpcWriteOptions(compression=compression)
    with pyarrow.ipc.new_file(path, batch.schema, options=options) as writer:
        writer.write_batch(batch)


@pytest.mark.parametrize(
    "columns",
    [
        {"id": [0, 1, None]},
        {"id": np.arange(3.0)},
        {"text": ["x"] * 3},
        {"source": ["x"] * 3},
        {"synthetic": [0, 1, 1]},
        {"image_id": pyarrow.array(["x", None, "y"], pyarrow.large_string())},
    ],
)
def test_columns_of_another_kind_are_not_read(files, columns):
    write_arrow(files[0])
    assert len(Segment.open(files, 3, 16, "float32")) == 3
    write_arrow(files[0], **columns)
    with pytest.raises(PackError, match=r"captions\.arrow"):
        Segment.open(files, 3, 16, "float32")


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_what_is_compressed_is_not_read(files, compression):
    """Little could become much: nothing may be unpacked before that is seen."""
    many = pyarrow.array(["x" * 2_000_000] * 3, pyarrow.large_string())
    write_arrow(files[0], compression, image_id=many)
    before = pyarrow.default_memory_pool().max_memory()
    with pytest.raises(PackError, match="it is compressed"):
        Segment.open(files, 3, 16, "float32")
    assert pyarrow.default_memory_pool().max_memory() == before


def test_a_source_whose_name_would_be_written_out_too_often_is_not_read(files, monkeypatch):
    monkeypatch.setattr(manifest, "ALLOWANCE", 1000)
    for length, fits in ((manifest.MAX_ROW_BYTES, True), (manifest.MAX_ROW_BYTES + 1000, False)):
        names = pyarrow.array(["x", "y" * length, "x"], pyarrow.large_string())
        write_arrow(files[0], source=names.dictionary_encode())
        if fits:
            assert len(Segment.open(files, 3, 16, "float32")) == 3
        else:
            with pytest.raises(PackError, match="far more than captions take"):
                Segment.open(files, 3, 16, "float32")


def text_column(offsets, data):
    parts = [None, pyarrow.py_buffer(np.array(offsets, np.int64)), pyarrow.py_buffer(data)]
    return pyarrow.Array.from_buffers(pyarrow.large_string(), len(offsets) - 1, parts)


def read_rows(files):
    store = Segments(16, "float32")
    store.put(0, [Segment.open(files, 3, 16, "float32")])
    return store.rows([0, 1, 2])


@pytest.mark.parametrize("most", [0, 1_000_000])
def test_offsets_are_checked_however_many_captions_there_are(files, monkeypatch, most):
    monkeypatch.setattr(segments, "FULLY_VALIDATED", most)
    write_arrow(files[0], text=text_column([0, 1, 2, 3], b"abc"))
    assert [row.text for row in read_rows(files)] == ["a", "b", "c"]
    write_arrow(files[0], text=text_column([0, 1 << 40, 2, 3], b"abc"))
    with pytest.raises(PackError, match=r"captions\.arrow"):
        Segment.open(files, 3, 16, "float32")


@pytest.mark.parametrize("most", [0, 1_000_000])
def test_a_caption_that_is_no_text_is_an_error_that_says_so(files, monkeypatch, most):
    monkeypatch.setattr(segments, "FULLY_VALIDATED", most)
    write_arrow(files[0], text=text_column([0, 1, 2, 3], b"a\xffc"))
    with pytest.raises(PackError, match=r"captions\.arrow|pack verify"):
        read_rows(files)


@pytest.mark.parametrize("make", [Datastore, DiskStore.create])
def test_nothing_of_a_removed_caption_stays_when_compacted(tmp_path, unit, make):
    store = Datastore(16) if make is Datastore else make(tmp_path, 16, dtype="float32")
    store.add(["secret words", "other words"], unit(2), source=["secret source", "s"], image_ids=["secret image", "i"])
    store.save(tmp_path) if make is Datastore else store.commit()
    twin = store.centred_by(unit(1)[0] * 0.1)
    assert any(b"secret" in path.read_bytes() for path in tmp_path.iterdir())
    store.remove([0])
    store.compact()
    assert not any(b"secret" in path.read_bytes() for path in tmp_path.iterdir())
    assert [row.text for row in store] == [row.text for row in twin] == ["other words"]
    twin.add(["new words"], unit(1))
    assert [row.text for row in store] == ["other words", "new words"]
