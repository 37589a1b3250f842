import pytest

from recap.errors import InputError
from recap.metrics import chair, evaluate
from recap.metrics.chair import invented


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
