"""``benchmarks/results.py``: its commands exist, cheap ones come first, and a stopped run goes on."""

import shlex
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from recap.experiments.base import EXPERIMENTS, options_of

ROOT = Path(__file__).parents[2]


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import results

    return results


def test_every_command_exists_with_its_options(results):
    for table in results.TABLES:
        first, *rest = shlex.split(table.command)
        if first != "experiment":
            assert (ROOT / "benchmarks" / first).is_file(), table.name
            continue
        assert rest[0] in EXPERIMENTS.names(), table.name
        options = {value.partition("=")[0] for flag, value in pairwise(rest) if flag == "--option"}
        assert options <= options_of(rest[0]), table.name
    assert len({table.name for table in results.TABLES}) == len(results.TABLES)


def test_every_table_is_named_in_the_docs(results):
    docs = "".join((ROOT / "docs" / name).read_text() for name in ("results.md", "metrics.md", "xrays.md"))
    assert [table.name for table in results.TABLES if f"`{table.name}`" not in docs] == []


def test_the_cheap_ones_come_first_and_what_is_there_is_not_made_again(results, tmp_path, monkeypatch, capsys):
    (tmp_path / "hello.py").write_text("import sys; print('hello', *sys.argv[1:])")
    (tmp_path / "broken.py").write_text("raise SystemExit('no pictures in DIR')")
    tables = (results.Made("dear", 9, "hello.py dear"), results.Made("none", 2, "broken.py"))
    tables = (*tables, results.Made("cheap", 1, "hello.py DATA/x"))
    monkeypatch.setattr(results, "TABLES", tables)
    monkeypatch.setattr(results, "HERE", tmp_path)
    out = tmp_path / "out"
    assert results.main([str(tmp_path / "data"), "--out", str(out)]) == 1
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in said[:3]] == ["cheap", "none", "dear"]
    assert said[1] == "none: not made. no pictures in DIR"
    assert said[3] == f"2 of 3 tables are in {out}"
    assert (out / "cheap.md").read_text().endswith(f"\n\nhello {tmp_path / 'data'}/x\n")
    (tmp_path / "hello.py").write_text("raise SystemExit('again')")
    assert results.main([str(tmp_path / "data"), "--out", str(out), "--only", "cheap,dear"]) == 0
    with pytest.raises(SystemExit, match="no table chaep"):
        results.main([str(tmp_path), "--only", "chaep"])


def test_experiments_are_given_the_data_and_the_limit(results):
    table = results.Made("x", 1, "experiment search-k --on xrays")
    expected = "-m recap experiment search-k --on xrays --data d --format markdown --out o/x --limit 5"
    assert table.arguments(Path("d"), Path("o"), 5)[1:] == expected.split()
    assert table.arguments(Path("d"), Path("o"))[0] == sys.executable
