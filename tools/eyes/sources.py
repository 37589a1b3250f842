"""Which pictures the eyes learn from, and what is said of each.

Pictures are blobs of git directories, as ``git clone --bare`` leaves them below one folder (``OWNER+NAME/repo``), and
COCO's captions come from an asset of recap. A set with captions keeps them; a set with names turns each name into
sentences of several wordings, but for pictures that we described ourselves. Nothing of Flickr8k is among them, so that
it stays a test of another world.
"""

from __future__ import annotations

import csv
import json
import random
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from recap.packs.builtin import described_captions

SEED = 14
TINTS = ("grey", "grey", "tint")
"""What happens to pictures that lose their colours, each as likely as the others."""

PHOTO = ("a photo of {}", "{}", "a close up of {}", "a picture of {}")
SCENE = ("{}", "a photo of {}", "a view of {}", "the scene is {}")


@dataclass(frozen=True, slots=True)
class Record:
    """One picture: where its bytes are, how to undo what was done to it, and what is said of it."""

    source: str
    id: str
    repository: str
    blob: str
    captions: tuple[str, ...]
    fix: str = ""
    """Names of ``eyes.maps.FIXES``, joined by spaces, such as ``letterbox`` (a white border is cut off)."""


@dataclass(frozen=True, slots=True)
class Named:
    """A set whose pictures have a name, found in their path."""

    source: str
    repository: str
    pattern: str
    """A regular expression whose group is the name."""
    limit: int
    """At most so many pictures of one name."""
    templates: tuple[str, ...] = PHOTO
    commit: str = "HEAD"
    spell: Callable[[str], str | None] = lambda name: name
    """From what the path says to words; ``None`` leaves the picture out."""
    fix: str = ""


def with_article(name: str) -> str:
    """Return a name with ``a`` or ``an``, unless it has an article or is no single thing."""
    if re.match(r"(a|an|the|some|two|people|several)\b", name) or re.search(r"[^s]s$", name.split(" of ")[0]):
        return name
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def plain(name: str) -> str:
    """Return a name as words in lower case."""
    return " ".join(re.sub(r"[_\-/]+", " ", name).split()).lower()


def sentences(name: str, templates: Iterable[str]) -> tuple[str, ...]:
    """Return a name in several wordings."""
    return tuple(template.format(name) for template in templates)


PLACES_INDOOR = ("the inside of {}", "{}", "a photo of {}", "a room in {}")
ART = {
    "Abstract_Expressionism": "an abstract painting",
    "Color_Field_Painting": "an abstract painting of large fields of colour",
    "Cubism": "a cubist painting",
    "Minimalism": "a minimalist work of art",
    "Ukiyo_e": "a Japanese woodblock print",
    "Pop_Art": "a colourful pop art picture",
    "Pointillism": "a painting made of small dots",
}
CALTECH = {
    "airplanes": "airplane",
    "Faces": "person's face",
    "Motorbikes": "motorcycle",
    "car_side": "car seen from the side",
    "garfield": "cartoon cat",
    "snoopy": "cartoon dog",
    "binocular": "pair of binoculars",
    "scissors": "pair of scissors",
    "inline_skate": "inline skate",
    "yin_yang": "yin and yang symbol",
    "BACKGROUND_Google": None,
    "Faces_easy": None,
    "Leopards": "leopard",
    "ketch": "sailing boat",
    "schooner": "sailing ship",
    "chandelier": "chandelier",
    "cougar_body": "cougar",
    "cougar_face": "face of a cougar",
    "crocodile_head": "head of a crocodile",
    "flamingo_head": "head of a flamingo",
    "ewer": "jug",
    "minaret": "minaret of a mosque",
    "pagoda": "pagoda",
    "dollar_bill": "dollar bill",
    "wheelchair": "wheelchair",
}
AERIAL = {
    "BareLand": "bare land", "BaseballField": "a baseball field", "DenseResidential": "many houses close together",
    "MediumResidential": "houses and streets", "SparseResidential": "a few houses among trees",
    "RailwayStation": "a railway station", "StorageTanks": "storage tanks", "Farmland": "fields of farmland",
    "Center": "a large building in a city", "Commercial": "buildings in a city", "Industrial": "a factory area",
    "Parking": "a parking lot full of cars", "Viaduct": "a highway interchange", "Meadow": "a green meadow",
    "Mountain": "mountains", "Pond": "a pond",
}  # fmt: skip
DOMAINS = {"art_painting": "a painting of {}", "cartoon": "a cartoon of {}", "sketch": "a drawing of {}"}
THINGS = {"person": "a person", "elephant": "an elephant"}


def imagenet_name(name: str) -> str | None:
    """Return the name of an ImageNet class with its article."""
    return with_article(plain(name))


def place_name(name: str) -> str:
    """Return the name of a MiniPlaces scene (``amusement_park``, ``apartment_building/outdoor``)."""
    place, _, where = name.partition("/")
    words = with_article(plain(place))
    return f"{words} seen from {'inside' if where in ('indoor', 'interior') else 'outside'}" if where else words


def landmark_name(name: str) -> str:
    """Return a landmark as it is written."""
    return name.replace("_", " ")


NAMED = (
    Named("imagenet", "EliSchwartz+imagenet-sample-images", r"n\d+_(.+)\.JPEG$", 9, spell=imagenet_name),
    Named("imagenet", "ajschumacher+imagen", r"imagen/n\d+_\d+_(.+)\.jpg$", 9, spell=imagenet_name),
    Named(
        "places", "rathull+CTFs", r"data/images/train/\w/(.+)/\d+\.jpg$", 90, SCENE,
        commit="f35c219885f163ca00a045236dd44be489598837", spell=place_name,
    ),
    Named(
        "birds", "DavidReveloLuna+Bird_Classification-", r"dataset/consolidated/([^/]+)/", 12,
        ("a photo of {}", "a bird, {}", "a close up of a bird", "{}"), spell=imagenet_name,
    ),
    Named(
        "landmarks", "Chaklader+landmark-classification-cnn", r"landmark_images/train/\d+\.([^/]+)/", 50,
        ("{}", "a photo of {}", "a view of {}", "tourists visit {}"), spell=landmark_name,
    ),
    Named(
        "art", "jalpv1+wiki-art-selected-resized", r"^([^/]+)/", 160,
        ("{}", "{} in a frame", "{}, a work of art", "{} hanging in a museum"),
        spell=lambda style: ART.get(style, f"a painting in the style of {plain(style)}"),
    ),
    Named(
        "caltech", "MachineLearning2020+Homework2-Caltech101", r"101_ObjectCategories/([^/]+)/", 35,
        spell=lambda name: with_article(plain(thing)) if (thing := CALTECH.get(name, name)) else None,
    ),
    Named(
        "drawings", "MachineLearning2020+Homework3-PACS", r"PACS/((?:art_painting|cartoon|sketch)/[^/]+)/", 90,
        ("{}", "{} on paper", "a picture of {}", "{} made by an artist"),
        spell=lambda name: DOMAINS[name.split("/")[0]].format(with_article(name.split("/")[1])),
    ),
    Named(
        "sports", "HoldenLauer+Sports_Image_Classification", r"Machine Learning/train/([^/]+)/", 25,
        ("people doing {}", "{}", "a photo of {}", "a person takes part in {}"), spell=plain,
    ),
    Named(
        "instruments", "aizadaaskar+dl-homework", r"train/([^/]+)/", 50,
        ("a photo of {}", "{}", "{}, a musical instrument", "a picture of {}"), spell=imagenet_name,
    ),
    Named("food", "MotherHazker+ObjectClassification", r"train/([^/]+)/", 50, spell=lambda name: plain(name)),
    Named(
        "aerial", "zlima+testtensor", r"AID/([^/]+)/", 50,
        ("an aerial view of {}", "a satellite picture of {}", "{} seen from above", "{} from the air"),
        spell=lambda name: AERIAL.get(name, with_article(plain(name))),
    ),
    Named(
        "landscapes", "keshav1245+Image-Classification-using-AlexNet-CNN-Model", r"seg_train/seg_train/([^/]+)/", 200,
        SCENE, spell=lambda name: {"buildings": "buildings in a city", "sea": "the sea"}.get(name, with_article(name)),
    ),
    Named(
        "receipts", "zzzDavid+ICDAR-2019-SROIE", r"data/img/(\d)\d+\.jpg$", 12,
        ("a receipt", "a photo of a receipt from a shop", "a scanned receipt", "a piece of paper with printed text"),
        spell=lambda _: "",
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mirror:
    """The folder of git directories."""

    folder: Path

    def directory(self, repository: str) -> Path:
        """Return the git directory of a repository."""
        top = self.folder / repository / "repo"
        return top / ".git" if (top / ".git").is_dir() else top

    def files(self, repository: str, commit: str = "HEAD") -> Iterator[tuple[str, str]]:
        """Yield path and blob of every file."""
        command = ["git", f"--git-dir={self.directory(repository)}", "ls-tree", "-r", "-z", commit]
        for line in subprocess.run(command, check=True, capture_output=True).stdout.decode().split("\0"):
            if line:
                about, path = line.split("\t", 1)
                yield path, about.split()[2]

    def text(self, repository: str, path: str, commit: str = "HEAD") -> str:
        """Return a text file."""
        command = ["git", f"--git-dir={self.directory(repository)}", "show", f"{commit}:{path}"]
        return subprocess.run(command, check=True, capture_output=True).stdout.decode("utf-8", "replace")


def named(mirror: Mirror, kind: Named) -> list[Record]:
    """Return the pictures of a set with names, at most ``limit`` of each, drawn with a fixed seed."""
    by_name: dict[str, list[tuple[str, str]]] = {}
    for path, blob in mirror.files(kind.repository, kind.commit):
        found = re.search(kind.pattern, path)
        if found and re.search(r"\.(jpe?g|png)$", path, re.IGNORECASE):
            by_name.setdefault(found.group(1), []).append((path, blob))
    records = []
    for name, files in sorted(by_name.items()):
        spelled = kind.spell(name)
        if spelled is None:
            continue
        files = random.Random(SEED).sample(sorted(files), min(kind.limit, len(files)))
        said = sentences(spelled, kind.templates)
        records += [Record(kind.source, path, kind.repository, blob, said, fix=kind.fix) for path, blob in files]
    return records


def coco(mirror: Mirror, captions: Iterable[Path]) -> list[Record]:
    """Return the pictures of train2017 with their captions."""
    said: dict[int, list[str]] = {}
    for file in captions:
        content = json.loads(file.read_text(encoding="utf-8"))
        for item in content["annotations"]:
            said.setdefault(item["image_id"], []).append(" ".join(item["caption"].split()))
    repository = "hai4h+cnn-edge-detection"
    return [
        Record("coco", str(number), repository, blob, tuple(said[number][:5]))
        for path, blob in mirror.files(repository)
        if path.startswith("train2017/") and (number := int(Path(path).stem)) in said
    ]


def conceptual(mirror: Mirror) -> list[Record]:
    """Return the pictures of Conceptual Captions, each with its sentence."""
    repository, commit = "heon01px2020+csci1470-prismer-final-project", "e059e1606aef04521e399c2b421438a46658a018"
    files = dict(mirror.files(repository, commit))
    texts = {path: blob for path, blob in files.items() if re.match(r"data/\d+/\d+\.txt$", path)}
    contents = read_blobs(mirror.directory(repository), texts.values())
    records = []
    for path, content in zip(texts, contents, strict=True):
        picture = files.get(path.replace(".txt", ".jpg"))
        caption = " ".join(content.decode("utf-8", "replace").split())
        if picture and caption:
            records.append(Record("conceptual", path, repository, picture, (caption,), fix="letterbox"))
    return records


def travels(mirror: Mirror) -> list[Record]:
    """Return the photographs of IAPR TC-12, each with the first of what its description says."""
    repository = "VISHESH1234567+Explainability_IntegratedGradients_LIME"
    files = dict(mirror.files(repository))
    texts = {
        path: blob for path, blob in files.items() if re.match(r"iaprtc12/annotations_complete_eng/.+\.eng$", path)
    }
    contents = read_blobs(mirror.directory(repository), texts.values())
    records = []
    for path, content in zip(texts, contents, strict=True):
        said = re.search(r"<DESCRIPTION>(.*?)</DESCRIPTION>", content.decode("latin-1"), re.DOTALL)
        caption = first_said(said.group(1)) if said else ""
        picture = path.replace("annotations_complete_eng", "images").replace(".eng", ".jpg")
        if caption and picture in files:
            records.append(Record("travels", picture, repository, files[picture], (caption,)))
    return records


def first_said(description: str, longest: int = 18) -> str:
    """Return the first part of a description as a sentence, without what is in its back- and foreground if too long."""
    part = " ".join(description.split(";")[0].split())
    while len(part.split()) > longest and re.search(r", | with ", part):
        part = re.sub(r"(, | with )(?!.*(, | with )).*$", "", part)
    part = re.sub(r" in the (fore|back)ground$", "", part.strip(" .,"))
    return f"{part[0].upper()}{part[1:]}." if len(part.split()) > 2 else ""


def validation_of_imagenet(mirror: Mirror, limit: int = 4) -> list[Record]:
    """Return pictures of ImageNet's classes, whose folders have numbers."""
    repository = "ndb796+Small-ImageNet-Validation-Dataset-1000-Classes"
    names = json.loads(mirror.text(repository, "imagenet_class_index.json"))
    kind = Named(
        "imagenet", repository, r"ILSVRC2012_img_val_subset/(\d+)/", limit,
        spell=lambda number: imagenet_name(names[number][1]),
    )  # fmt: skip
    return named(mirror, kind)


def cars(mirror: Mirror, limit: int = 8) -> list[Record]:
    """Return pictures of cars with make and year; their red and blue are swapped."""
    names = {row["class_id"]: row["class_name"] for row in _table(mirror, "names.csv")}
    files = {Path(path).name: blob for path, blob in mirror.files("fmejbah+car_dataset1") if "cars_train" in path}
    seen: dict[str, int] = {}
    records = []
    for row in _table(mirror, "anno_train.csv"):
        name = names[row["label"]]
        seen[name] = seen.get(name, 0) + 1
        if seen[name] <= limit and row["image_name"] in files:
            said = sentences(with_article(name), ("a photo of {}", "a car, {}", "a parked car", "{}"))
            blob = files[row["image_name"]]
            records.append(Record("cars", row["image_name"], "fmejbah+car_dataset1", blob, said, fix="swapped"))
    return records


def _table(mirror: Mirror, path: str) -> list[dict[str, str]]:
    return list(csv.DictReader(mirror.text("7arss+Vehicle-Recognition", path).splitlines()))


def clothes(mirror: Mirror, limit: int = 18) -> list[Record]:
    """Return pictures of clothes on white."""
    repository = "phandungmta+Doan_2020"
    files = {Path(path).name: blob for path, blob in mirror.files(repository) if path.startswith("images/")}
    seen: dict[str, int] = {}
    records = []
    for row in csv.DictReader(mirror.text(repository, "CBIR-master/imgfull.csv").splitlines()):
        name, file = row["cls"], Path(row["img"]).name
        seen[name] = seen.get(name, 0) + 1
        if seen[name] <= limit and file in files:
            words = with_article(plain(name))
            said = sentences(words, ("{}", "a photo of {}", "{} on a white background", "a product photo of {}"))
            records.append(Record("clothes", file, repository, files[file], said))
    return records


def charts(mirror: Mirror, limit: int = 900) -> list[Record]:
    """Return charts with their titles."""
    repository = "vis-nlp+Chart-to-text"
    files = dict(mirror.files(repository))
    there = sorted(path for path in files if re.search(r"(statista|pew)_dataset/dataset/imgs/\d+\.png$", path))
    chosen = random.Random(SEED).sample(there, limit)
    titles = [re.sub(r"imgs/(\d+)\.png", r"titles/\1.txt", path) for path in chosen]
    contents = read_blobs(mirror.directory(repository), [files[title] for title in titles])
    records = []
    for path, content in zip(chosen, contents, strict=True):
        title = " ".join(content.decode("utf-8", "replace").split())[:120]
        said = (f"a chart: {title}", "a chart with numbers", "a graph of statistics", "a diagram with bars or lines")
        records.append(Record("charts", path, repository, files[path], said))
    return records


def read_blobs(directory: Path, blobs: Iterable[str]) -> Iterator[bytes]:
    """Yield the contents of blobs, in order; nothing for one that is not there."""
    asked = "".join(f"{blob}\n" for blob in blobs).encode()
    command = ["git", f"--git-dir={directory}", "cat-file", "--batch"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        # one at a time: a full pipe in both directions would stop both sides
        for line in asked.splitlines(keepends=True):
            process.stdin.write(line)
            process.stdin.flush()
            about = process.stdout.readline().split()
            if about[-1] == b"missing":  # a mirror may lack its largest files
                yield b""
                continue
            yield process.stdout.read(int(about[2]))
            process.stdout.read(1)
        process.stdin.close()


DESCRIBED = "described"
"""The source of pictures that have captions of our own."""
PHOTOGRAPHS = "yavuzceliker+sample-images"
"""Photographs of all kinds without any text: only those that we described are learned from."""


def described(records: Iterable[Record], mirror: Mirror) -> list[Record]:
    """Return records with our own captions where there are any, and the photographs that have no others."""
    ours = described_captions()
    photographs = [Record("photographs", path, PHOTOGRAPHS, blob, ()) for path, blob in mirror.files(PHOTOGRAPHS)]
    with_ours = []
    for record in [*records, *photographs]:
        name = f"{record.source} {record.id}"
        if name in ours:
            with_ours.append(replace(record, source=DESCRIBED, id=name, captions=tuple(ours[name])))
        elif record.captions:
            with_ours.append(record)
    return with_ours


def all_records(mirror: Mirror, coco_captions: Iterable[Path]) -> list[Record]:
    """Return every picture, in an order that lets training begin early: a part of COCO, the world, the rest."""
    world = conceptual(mirror) + cars(mirror) + clothes(mirror) + charts(mirror)
    for kind in NAMED:
        world += named(mirror, kind)
    world = described(world + travels(mirror) + validation_of_imagenet(mirror), mirror)
    common = coco(mirror, coco_captions)
    for part in (world, common):
        random.Random(SEED).shuffle(part)
    whole = common[:40_000] + world + common[40_000:]
    return whole + without_colours(whole)


def without_colours(records: Sequence[Record], count: int = 12_288) -> list[Record]:
    """Return some photographs once more in shades of one colour, as many are that people have."""
    rng = random.Random(SEED)
    photographs = [record for record in records if record.source not in ("charts", "receipts", "art", "drawings")]
    chosen = rng.sample(photographs, min(count, len(photographs)))
    return [replace(record, fix=f"{record.fix} {rng.choice(TINTS)}".strip()) for record in chosen]


def save(records: Iterable[Record], path: Path) -> None:
    """Write one json line a record."""
    path.write_text("".join(json.dumps(asdict(record)) + "\n" for record in records), encoding="utf-8")


def load(path: Path) -> list[Record]:
    """Read what ``save`` wrote."""
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        values = json.loads(line)
        records.append(Record(**{**values, "captions": tuple(values["captions"])}))
    return records
