from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from recap.datasets import find_images
from recap.encoders import Encoder
from recap.errors import InputError
from recap.fitting.embedding import embed
from recap.fitting.vectors import VectorFolder, read_shard
from recap.parallel import storage
from recap.parallel.parts import find_parts


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("b.png", "a/z.png", "a/b/c.png", "a-b/x.png", ".hidden/y.png", "a/.thumb.png", "a.txt"):
        path = tmp_path / "tree" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return tmp_path / "tree"


def test_a_folder_is_listed_like_find_images_does(tree: Path):
    expected = [path.relative_to(tree).as_posix() for path in find_images([tree])]
    assert [file.name for file in storage.listing(str(tree)) if file.name.endswith(".png")] == expected


@pytest.mark.parametrize("place", ["{}", "file://{}"])
def test_a_path_and_a_url_give_the_same(tree: Path, place: str):
    found = storage.listing(place.format(tree))
    assert [storage.read_bytes(file.url).decode() for file in found] == [file.name for file in found]
    assert [file.name for file in storage.listing(place.format(tree / "a" / "*.png"))] == ["z.png"]
    assert [file.name for file in storage.listing(place.format(tree / "*" / "x.png"))] == ["a-b/x.png"]
    assert storage.is_folder(place.format(tree))
    with storage.local_copy(place.format(tree / "b.png")) as path:
        assert (path.name, path.read_bytes()) == ("b.png", b"b.png")


def test_a_changed_file_has_another_token(tree: Path):
    before = {file.name: file.token for file in storage.listing(str(tree))}
    (tree / "b.png").write_bytes(b"longer than before")
    after = {file.name: file.token for file in storage.listing(str(tree))}
    assert [name for name in before if before[name] != after[name]] == ["b.png"]


@pytest.mark.parametrize("place", ["{}/new/file", "file://{}/new/file", "memory://new/file"])
def test_a_file_appears_when_it_is_complete(tmp_path: Path, place: str):
    target = place.format(tmp_path)

    def broken() -> None:
        with storage.whole_file(target) as file:
            file.write(b"half")
            raise ValueError

    with pytest.raises(ValueError, match=r"^$"):
        broken()
    assert not storage.exists(target)
    with storage.whole_file(target) as file:
        file.write(b"whole")
    assert storage.read_bytes(target) == b"whole"
    storage.remove(target)
    assert not storage.exists(target)


@pytest.mark.parametrize("place", ["{}/nothing", "file://{}/nothing", "nosuch://{}/nothing"])
def test_what_is_not_there_is_an_error_that_names_it(tmp_path: Path, place: str):
    with pytest.raises(InputError, match="no"):
        storage.listing(place.format(tmp_path))


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A bucket of a server of this machine that speaks S3."""
    moto = pytest.importorskip("moto.server", reason="a bucket to test with needs moto[server]")
    s3fs = pytest.importorskip("s3fs", reason="s3:// needs s3fs")
    server = moto.ThreadedMotoServer("127.0.0.1", port=0)
    server.start()
    address = "http://{}:{}".format(*server.get_host_and_port())
    known = {"AWS_ENDPOINT_URL": address, "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
    for name, value in known.items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    s3fs.S3FileSystem().mkdir("recap")
    yield "s3://recap"
    s3fs.S3FileSystem.clear_instance_cache()
    server.stop()


def test_a_bucket_is_embedded_as_a_folder_is(bucket: str, pairs_folder: Path, encoder: Encoder, tmp_path: Path):
    for path in pairs_folder.iterdir():
        with storage.whole_file(f"{bucket}/pairs/{path.name}") as file:
            file.write(path.read_bytes())
    found = [file.name for file in storage.listing(f"{bucket}/pairs")]
    assert found == [file.name for file in storage.listing(str(pairs_folder))]
    for _ in range(2):  # the second time everything is there
        there = embed(find_parts(f"{bucket}/pairs", size=4), f"{bucket}/vectors", encoder)
        assert (there.pictures, there.captions, len(there.shards)) == (18, 54, 5)
    embed(find_parts(str(pairs_folder), size=4), str(tmp_path / "here"), encoder)
    folders = (VectorFolder(f"{bucket}/vectors"), VectorFolder(str(tmp_path / "here")))
    columns = ["id", "captions", "image_vector", "caption_vectors"]
    for one, other in zip(*(folder.shards for folder in folders), strict=True):
        blocks = [[block.table.select(columns) for block in read_shard(place)] for place in (one, other)]
        assert blocks[0] == blocks[1]
    with pytest.raises(InputError, match="nothing"):
        find_parts(f"{bucket}/nothing")
