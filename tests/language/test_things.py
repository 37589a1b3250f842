import pytest

from recap.language.things import EITHER, HINTS, THINGS, named, shown


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


def test_a_hint_shows_a_thing_without_naming_it():
    assert named("skateboarding in a park") == ()
    assert shown("skateboarding in a park") == {"person", "skateboard"}
    assert shown("a puppy on a couch") == {"dog", "couch"}


def test_the_table_is_whole():
    assert len(THINGS) == 80
    listed = [word for words in THINGS.values() for word in words.split(", ")]
    assert len(listed) == len(set(listed))
    for named_kinds in (*EITHER.values(), *HINTS.values()):
        assert set(named_kinds.split(", ")) <= THINGS.keys()
    for kind in THINGS.keys() - {"orange"}:
        assert kinds(f"a {kind}") == [kind]
