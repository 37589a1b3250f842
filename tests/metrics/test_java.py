"""METEOR itself where Java is; SPICE with a stand-in for Java, since no package carries its models."""

import gzip
import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from recap.errors import InputError
from recap.metrics.java import JavaError, find_java, java_spice, meteor

REFERENCES = [
    ["A man riding a wave on a surfboard.", "A surfer rides a large wave.", "A man surfs in the ocean."],
    ["Two dogs are playing in the grass.", "Dogs run on a green lawn.", "Two dogs running through the grass."],
    ["A plate of food with broccoli.", "Broccoli and rice on a white plate."],
    ["A man is sitting on a bench.", "An old man sits on a wooden bench in the park.", "A man on a bench."],
]
CANDIDATES = [
    "a man riding a wave on top of a surfboard",
    "two dogs running in the grass",
    "a plate of broccoli and rice",
    "a woman standing next to a bench",
]
# what pycocoevalcap 1.2 returns for them; they hold no paraphrases
METEOR = [0.5255759325753065, 0.4598636356077838, 0.3464597264911982, 0.22562386520755728]
METEOR_CORPUS = 0.4011624171388626

STAND_IN = """#!{python}
import json, sys
arguments = sys.argv[1:]
place = arguments.index("spice-1.0.jar")
with open(arguments[place + 1]) as file:
    items = json.load(file)
with open("seen.json", "w") as file:
    json.dump([arguments, items], file)
if {fails}:
    sys.exit("no room in the heap")
scores = []
for item in reversed(items):
    kinds = {{"All": {{"f": item["test"] in item["refs"]}}, "Color": {{"f": None}}}}
    scores.append({{"image_id": item["image_id"], "scores": kinds}})
with open(arguments[arguments.index("-out") + 1], "w") as file:
    json.dump(scores, file)
"""


@pytest.fixture
def meteor_files(tmp_path):
    """The jar out of the installed package, and an empty table instead of one that takes ten seconds to read."""
    package = pytest.importorskip("pycocoevalcap")
    if shutil.which("java") is None:
        pytest.skip("there is no Java here")
    table = tmp_path / "paraphrases.gz"
    gzip.open(table, "wb").close()
    return {"jar": Path(package.__path__[0], "meteor", "meteor-1.5.jar"), "paraphrases": table}


@pytest.fixture
def no_java(monkeypatch, tmp_path):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))


def spice_home(folder, *, models=True):
    (folder / "lib").mkdir()
    (folder / "spice-1.0.jar").touch()
    names = ["stanford-corenlp-3.6.0.jar", *(["stanford-corenlp-3.6.0-models.jar"] if models else [])]
    for name in names:
        (folder / "lib" / name).touch()
    return folder


def stand_in_for_java(folder, monkeypatch, *, fails=False):
    program = folder / "bin" / "java"
    program.parent.mkdir()
    program.write_text(STAND_IN.format(python=sys.executable, fails=fails), "utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(folder))


def test_meteor_equals_coco_caption(meteor_files):
    result = meteor(CANDIDATES, REFERENCES, **meteor_files)
    np.testing.assert_allclose(result.per_image, METEOR, rtol=0, atol=1e-12)
    assert result.value == pytest.approx(METEOR_CORPUS, abs=1e-12)
    # of the order of the deviation of four values over the root of four
    assert 0.02 < result.standard_error < 0.12


def test_meteor_shows_how_far_it_is(meteor_files, monkeypatch, capsys):
    monkeypatch.setattr("recap.files.LOG_SECONDS", 0.0)
    meteor(CANDIDATES, REFERENCES, progress=True, **meteor_files)
    assert "recap: METEOR: 4 of 4 after " in capsys.readouterr().err


def test_meteor_takes_candidates_in_any_number_and_survives_bars_and_blanks(meteor_files):
    mixed = ["||| two dogs", CANDIDATES[1], "", "\n"]
    result = meteor(mixed, REFERENCES, [1, 1, 1, 0], **meteor_files)
    assert result.per_image[1] == pytest.approx(METEOR[1], abs=1e-12)
    assert result.per_image[0] > 0
    assert result.per_image[2:].tolist() == [0.0, 0.0]


def test_meteor_says_why_it_stopped(meteor_files, tmp_path):
    with pytest.raises(JavaError, match=r"METEOR stopped.*none.jar"):
        meteor(CANDIDATES, REFERENCES, **{**meteor_files, "jar": tmp_path / "none.jar"})


@pytest.mark.usefixtures("no_java")
def test_without_java_the_error_names_it(tmp_path):
    with pytest.raises(JavaError, match=r"METEOR is a Java program.*JAVA_HOME"):
        meteor(CANDIDATES, REFERENCES, jar="x", paraphrases="y")
    with pytest.raises(JavaError, match="SPICE is a Java program"):
        java_spice(CANDIDATES, REFERENCES, home=tmp_path)


@pytest.mark.skipif(os.name == "nt", reason="the stand-in is a script")
def test_spice_is_given_the_captions_and_its_scores_come_back_in_order(tmp_path, monkeypatch):
    stand_in_for_java(tmp_path, monkeypatch)
    home = spice_home(tmp_path)
    result = java_spice(["a dog", "a cat", "a dog"], [["a dog"], ["a dog", "a cat"]], [1, 0, 0], home=home, memory="1G")
    assert result.name == "SPICE"
    assert result.per_image.tolist() == [1.0, 0.0, 1.0]
    assert np.isnan(result.breakdown["colour"].value)
    arguments, items = json.loads((home / "seen.json").read_text("utf-8"))
    assert "-Xmx1G" in arguments
    assert [item["refs"] for item in items] == [["a dog", "a cat"], ["a dog"], ["a dog"]]


@pytest.mark.skipif(os.name == "nt", reason="the stand-in is a script")
def test_a_failure_of_spice_is_told(tmp_path, monkeypatch):
    stand_in_for_java(tmp_path, monkeypatch, fails=True)
    with pytest.raises(JavaError, match="no room in the heap"):
        java_spice(["a"], [["a"]], home=spice_home(tmp_path))


@pytest.mark.skipif(os.name == "nt", reason="the stand-in is a script")
def test_what_spice_lacks_is_named(tmp_path, monkeypatch):
    stand_in_for_java(tmp_path, monkeypatch)
    monkeypatch.delenv("RECAP_SPICE", raising=False)
    with pytest.raises(InputError, match="RECAP_SPICE"):
        java_spice(["a"], [["a"]])
    with pytest.raises(InputError, match=r"no spice-1.0.jar"):
        java_spice(["a"], [["a"]], home=tmp_path)
    monkeypatch.setenv("RECAP_SPICE", str(spice_home(tmp_path, models=False)))
    with pytest.raises(InputError, match=r"needs stanford-corenlp-3.6.0-models.jar there"):
        java_spice(["a"], [["a"]])


@pytest.mark.skipif(os.name == "nt", reason="the stand-in is a script")
def test_java_home_comes_before_the_path(tmp_path, monkeypatch):
    stand_in_for_java(tmp_path, monkeypatch)
    assert find_java("METEOR") == str(tmp_path / "bin" / "java")


@pytest.mark.skipif(os.name == "nt", reason="the stand-in is a script")
def test_meteor_does_not_start_where_the_user_stands(tmp_path, monkeypatch):
    """Java takes settings from its working folder, and that may be a data set that somebody downloaded."""
    program = tmp_path / "bin" / "java"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\npwd > {tmp_path}/started-in\necho $@ >> {tmp_path}/started-in\n")
    program.chmod(0o755)
    (tmp_path / "meteor.jar").touch()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(JavaError, match="stopped"):
        meteor(CANDIDATES, REFERENCES, jar="meteor.jar", paraphrases="table.gz")
    folder, arguments = (tmp_path / "started-in").read_text().splitlines()
    assert Path(folder) != tmp_path
    assert f"{tmp_path}/meteor.jar" in arguments
