"""Files of arrays: what is written comes back, and what is not ours is refused by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from recap.alignment.storage import read_tensors, write_tensors
from recap.errors import PackError


def test_arrays_and_facts_come_back_whatever_their_strides(tmp_path: Path) -> None:
    array = np.arange(12.0).reshape(3, 4)
    write_tensors(tmp_path / "x", "kind", {"a": array.T, "b": array[:, ::2]}, {"fact": "7"})
    tensors, facts = read_tensors(tmp_path / "x", "kind", ["a", "b"], ["fact"])
    assert np.array_equal(tensors["a"], array.T)
    assert np.array_equal(tensors["b"], array[:, ::2])
    assert facts["fact"] == "7"


def test_a_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PackError, match=r"none: cannot be read"):
        read_tensors(tmp_path / "none", "kind", [], [])
    write_tensors(tmp_path / "x", "kind", {"a": np.ones(100)}, {})
    (tmp_path / "half").write_bytes((tmp_path / "x").read_bytes()[:-300])
    with pytest.raises(PackError, match=r"half: cannot be read"):
        read_tensors(tmp_path / "half", "kind", [], [])


def test_other_kinds_versions_and_gaps_are_refused(tmp_path: Path) -> None:
    write_tensors(tmp_path / "x", "kind", {"a": np.ones(2)}, {})
    with pytest.raises(PackError, match=r"not a file of other, but 'recap\.kind'"):
        read_tensors(tmp_path / "x", "other", [], [])
    with pytest.raises(PackError, match="incomplete, without b, fact"):
        read_tensors(tmp_path / "x", "kind", ["a", "b"], ["fact"])
    save_file({"a": np.ones(2)}, tmp_path / "foreign")
    with pytest.raises(PackError, match="unknown kind"):
        read_tensors(tmp_path / "foreign", "kind", [], [])
    save_file({"a": np.ones(2)}, tmp_path / "newer", {"format": "recap.kind", "version": "99"})
    with pytest.raises(PackError, match="version 99 is unknown"):
        read_tensors(tmp_path / "newer", "kind", [], [])


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    with pytest.raises(OSError, match="x"):
        write_tensors(tmp_path / "x", "kind", {"a": np.ones(2)}, {})
    assert [file.name for file in tmp_path.iterdir()] == ["x"]
