import json
import shutil
from pathlib import Path

from program import recap


def test_retrieve(pack: Path, new_pictures: dict[str, Path], web: tuple[Path, str]):
    done = recap("retrieve", "--pack", pack, "-k", 2, new_pictures["red"])
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert len(rows) == 2
    assert all("red" in caption for _, caption, _ in rows)
    plain = json.loads(recap("retrieve", "--pack", pack, "--json", new_pictures["red"]).stdout)
    assert len(plain["aligned"]) == 5
    assert "unaligned" not in plain
    shutil.copy(new_pictures["red"], web[0] / "red.png")
    assert recap("retrieve", "--pack", pack, "-k", 2, f"{web[1]}/red.png").stdout == done.stdout
    assert "gone.png: the answer was 404" in recap("retrieve", "--pack", pack, f"{web[1]}/gone.png", code=2).stderr
    for kind, start in (
        ("csv", "similarity,caption,source\n"),
        ("markdown", "| similarity | caption |"),
        ("latex", "\\begin"),
    ):
        assert recap("retrieve", "--pack", pack, "-k", 2, "--format", kind, new_pictures["red"]).stdout.startswith(
            start
        )
    assert "gone.jpg" in recap("retrieve", "--pack", pack, "gone.jpg", code=2).stderr


def test_retrieve_shows_both_where_both_exist(
    pairs_folder: Path, shared_encoder_folder: Path, new_pictures: dict[str, Path], tmp_path: Path
):
    recap("fit", pairs_folder, "--out", tmp_path / "pack", "--encoder", f"onnx:{shared_encoder_folder}")
    shown = recap("retrieve", "--pack", tmp_path / "pack", "-k", 2, new_pictures["red"]).stdout.splitlines()
    assert shown[0] == "# aligned"
    assert shown[3] == "# unaligned"
    assert len(shown) == 6
