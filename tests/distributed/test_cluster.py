"""The same on a small cluster as on one machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from recap.alignment import LinearAlignment
from recap.cli.main import cli
from recap.datasets import PairFiles
from recap.distributed.cluster import connect
from recap.distributed.embedding import embed
from recap.distributed.fitting import fit_vectors
from recap.distributed.parts import find_parts
from recap.distributed.runners import Runner
from recap.distributed.shards import VectorFolder, read_shard
from recap.encoders import Encoder
from recap.errors import MissingExtraError
from recap.fitting import encode_pairs


@pytest.mark.filterwarnings("ignore::recap.errors.RecapWarning")
def test_embed_and_fit(cluster: Runner, pairs_folder: Path, encoder: Encoder, tmp_path: Path):
    parts = find_parts(str(pairs_folder), size=4)
    done = embed(parts, str(tmp_path / "there"), encoder, runner=cluster)
    embed(parts, str(tmp_path / "here"), encoder)
    assert (done.pictures, done.captions, len(done.shards)) == (18, 54, 5)
    folders = [VectorFolder(str(tmp_path / name)) for name in ("there", "here")]
    for one, other in zip(*(folder.shards for folder in folders), strict=True):
        assert [block.table for block in read_shard(one)] == [block.table for block in read_shard(other)]
    found = fit_vectors(folders[0], encoder, runner=cluster, validation=0.2)
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


def run(*arguments: object) -> str:
    done = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_without_ray_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"\[ray\]"):
        connect()
