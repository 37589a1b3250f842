"""The same on a small cluster as on one machine."""

from __future__ import annotations

import json
import pickle
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from recap.alignment import LinearAlignment
from recap.cli.main import cli
from recap.datasets import PairFiles
from recap.encoders import Encoder
from recap.errors import EncoderMismatchError, InputError, MissingExtraError
from recap.fitting.embedding import Embedding, embed
from recap.fitting.fit import encode_pairs
from recap.fitting.vectors import Space, VectorFolder, read_shard
from recap.parallel.parts import find_parts
from recap.parallel.runners import Runner, _Actor, check_reachable, connect


@pytest.mark.filterwarnings("ignore::recap.errors.RecapWarning")
def test_embed_and_fit(cluster: Runner, pairs_folder: Path, encoder: Encoder, tmp_path: Path):
    parts = find_parts(str(pairs_folder), size=4)
    done = embed(parts, str(tmp_path / "there"), encoder, runner=cluster)
    embed(parts, str(tmp_path / "here"), encoder)
    assert (done.pictures, done.captions, len(done.shards)) == (18, 54, 5)
    folders = [VectorFolder(str(tmp_path / name)) for name in ("there", "here")]
    for one, other in zip(*(folder.shards for folder in folders), strict=True):
        assert [block.table for block in read_shard(one)] == [block.table for block in read_shard(other)]
    found = encode_pairs(VectorFolder(folders[0].place, cluster), encoder, validation=0.2)
    expected = encode_pairs(PairFiles(pairs_folder), encoder, validation=0.2)
    maps = [LinearAlignment.from_statistics(pairs.statistics, "ols").W_ for pairs in (found, expected)]
    np.testing.assert_allclose(*maps, atol=1e-6)
    assert list(found.datastore) == list(expected.datastore)
    assert found.validation.ids == expected.validation.ids


def test_commands(cluster: Runner, pack_folder: Path, new_pictures: dict[str, Path], tmp_path: Path):
    folder, out = new_pictures["red"].parent, tmp_path / "captions.json"
    told = [run("caption", folder, "--pack", pack_folder, "--json", *ray) for ray in ((), ("--ray=local",))]
    assert sorted(told[0].splitlines()) == sorted(told[1].splitlines())
    assert len(told[0].splitlines()) == 6
    out.write_text(json.dumps({colour: f"a {colour} wall" for colour in new_pictures}))
    judge = ("score", out, "--images", folder, "--pack", pack_folder, "--metrics", "aclip-s", "--json", "--per-image")
    assert run(*judge) == run(*judge, "--ray=local")


def test_what_a_worker_cannot_load_comes_back_as_the_error_it_is(encoder: Encoder):
    another = replace(Space.of(encoder), text_fingerprint="0" * 64)
    # Ray would start an actor again and again whose __init__ raises
    worker = _Actor(pickle.dumps(Embedding(another, "cpu")))
    done = worker({"number": [0], "item": [pickle.dumps("a part")]})
    (result,) = map(pickle.loads, done["result"])
    assert isinstance(result, EncoderMismatchError)
    assert "on another machine of the cluster" in str(result)


def test_another_process_finds_the_cluster_by_its_address(cluster: Runner):
    import ray

    look = "import sys; from recap.parallel.runners import RayRunner; print(RayRunner(sys.argv[1]).devices())"
    work = [sys.executable, "-c", look, ray.get_runtime_context().gcs_address]
    done = subprocess.run(work, capture_output=True, text=True, check=False)
    assert done.stdout == "2\n", done.stderr


CLIENT = """
import sys
from functools import partial
from operator import add
from recap.parallel.runners import RayRunner

print(sorted(RayRunner(sys.argv[1]).map(partial(partial, add, 40), [2, 3, 4])))
"""


def test_a_client_has_parts_done(cluster: Runner):
    from ray.util.client.server.server import serve

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server = serve("127.0.0.1", port)
    try:
        work = [sys.executable, "-c", CLIENT, f"ray://127.0.0.1:{port}"]
        done = subprocess.run(work, capture_output=True, text=True, check=False, timeout=300)
    finally:
        server.grpc_server.stop(0)
    assert done.stdout == "[(0, 42), (1, 43), (2, 44)]\n", done.stderr


@pytest.mark.parametrize("address", ["127.0.0.1:{}", "ray://127.0.0.1:{}", "ray://localhost:{}"])
def test_an_address_where_nobody_answers(address: str):
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = address.format(server.getsockname()[1])
        check_reachable(place)
    with pytest.raises(InputError, match=f"cluster at {place} cannot be reached"):
        connect(place)


@pytest.mark.parametrize("address", ["auto", "local", ""])
def test_an_address_without_a_host_is_left_to_ray(address: str, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:
        raise OSError("nobody was to be asked")

    monkeypatch.setattr(socket, "create_connection", refuse)
    with pytest.raises(InputError, match="nobody was to be asked"):
        check_reachable("127.0.0.1:6379")
    check_reachable(address)


def run(*arguments: object) -> str:
    done = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_without_ray_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"\[ray\]"):
        connect()
