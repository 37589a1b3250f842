import pytest

from recap.errors import InputError
from recap.metrics import chair, evaluate
from recap.metrics.chair import EITHER, HINTS, THINGS, invented, named


def kinds(text: str) -> list[str]:
    return [kinds[0] for kinds in named(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A man eats a hot dog.", ["person", "hot dog"]),
        ("Two hot-dogs and a dog", ["hot dog", "dog"]),
        ("teddy bears on a bed", ["teddy bear", "bed"]),
        ("a bear on a bed of leaves", ["bear"]),
        ("a cell phone, a wine glass and a hair dryer", ["cell phone", "wine glass", "hair drier"]),
        ("Women, children and mice", ["person", "person", "mouse"]),
        ("knives, calves, benches, buses, puppies, sandwiches", ["knife", "cow", "bench", "bus", "dog", "sandwich"]),
        ("sheep and skis and scissors", ["sheep", "skis", "scissors"]),
        ("a woman's purse", ["person", "handbag"]),
        ("a catcher’s mitt", ["baseball glove"]),
        ("a couple of birds", ["bird"]),
        ("a couple on a sofa", ["person", "couch"]),
        ("a baby elephant and its mother", ["elephant", "person"]),
        ("a passenger train at a train station", ["train"]),
        ("passengers on a train", ["person", "train"]),
        ("a toilet paper roll beside a bus stop", []),
        ("an orange cat", ["cat"]),
        ("an orange and white cat", ["cat"]),
        ("a man in orange", ["person"]),
        ("an orange on a plate", ["orange"]),
        ("an orange and a banana", ["banana", "orange"]),
        ("sliced oranges", ["orange"]),
        ("a caterpillar, a carpet, a scarf, a busy street", []),
        ("A MAN", ["person"]),
        ("", []),
    ],
)
def test_things_are_found_by_their_names(text: str, expected: list[str]):
    assert kinds(text) == expected


@pytest.mark.parametrize(
    ("candidate", "references", "expected"),
    [
        ("a dog on a sofa", ["a puppy sleeps on the couch"], []),
        ("a dog on a sofa", ["a hot dog on the couch"], ["dog"]),
        ("a dog and a dog and a cat", ["a wall"], ["dog", "cat"]),
        ("a man on a bike", ["a motorcyclist on his motorcycle"], []),
        ("a man on a bicycle", ["a man on his bike"], []),
        ("a man on a motorcycle", ["a man on his bicycle"], ["motorcycle"]),
        ("a van on a street", ["a white truck"], []),
        ("a man on a skateboard", ["skateboarding in a park"], []),
        ("a purse", ["a bag"], []),
        ("a bag", ["a wall"], []),
        ("people in a room", ["an empty room", "a room with chairs"], ["person"]),
        ("a kite over a beach", ["a beach", "the sea"], ["kite"]),
        ("oranges", ["orange fruit in a bowl"], []),
    ],
)
def test_what_no_reference_names_is_invented(candidate: str, references: list[str], expected: list[str]):
    assert invented(candidate, references) == expected


def test_the_metric_is_the_share_of_captions_that_invent():
    candidates = ["a dog", "a cat and a horse", "a wall"]
    references = [["a puppy"], ["a wall"], ["a wall"]]
    result = chair(candidates, references)
    assert result.per_image.tolist() == [0, 1, 0]
    assert result.value == pytest.approx(1 / 3)
    assert chair(["a dog", "a cat"], references, [1, 0]).value == 1
    assert evaluate(candidates, references, metrics="chair")["CHAIR"].value == result.value
    with pytest.raises(InputError, match="3 candidates but references of 2"):
        chair(candidates, references[:2])


def test_the_table_is_whole():
    assert len(THINGS) == 80
    listed = [word for words in THINGS.values() for word in words.split(", ")]
    assert len(listed) == len(set(listed))
    for named_kinds in (*EITHER.values(), *HINTS.values()):
        assert set(named_kinds.split(", ")) <= THINGS.keys()
    for kind in THINGS.keys() - {"orange"}:
        assert kinds(f"a {kind}") == [kind]
