"""CHAIR (Rohrbach et al. 2018): the share of captions that name a thing which is not in the picture.

What is in the picture is what its references name, of COCO's 80 kinds of objects; the published metric also looks at
COCO's outlines of objects, which other pictures do not have. Less is better. With few references a picture the value
is too high, since people leave out much of what they see.

The 80 kinds of objects of COCO, and the words people use for them.

Written for captions: what a word means in a sentence about a photograph. Plurals are formed by ``chair``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from typing import TypeAlias

import numpy as np

from recap.errors import InputError
from recap.metrics.statistics import MetricResult, mean_result
from recap.text import words

THINGS: dict[str, str] = {
    "person": (
        "person, people, man, woman, boy, girl, child, kid, baby, infant, toddler, guy, lady, gentleman, teen, "
        "teenager, adult, human, someone, somebody, couple, crowd, audience, family, pedestrian, passenger, commuter, "
        "tourist, traveler, traveller, visitor, spectator, onlooker, bystander, shopper, customer, diner, vendor, "
        "worker, employee, student, teacher, friend, mother, mom, father, dad, parent, son, daughter, brother, sister, "
        "husband, wife, grandmother, grandfather, grandma, grandpa, bride, groom, player, athlete, team, batter, "
        "catcher, umpire, referee, pitcher, outfielder, goalie, golfer, skier, snowboarder, skater, skateboarder, "
        "surfer, swimmer, runner, jogger, hiker, climber, rider, jockey, cyclist, bicyclist, biker, motorcyclist, "
        "driver, pilot, astronaut, sailor, fisherman, farmer, cowboy, soldier, officer, policeman, policewoman, cop, "
        "fireman, firefighter, guard, doctor, nurse, dentist, chef, baker, waiter, waitress, bartender, businessman, "
        "businesswoman, musician, singer, guitarist, drummer, dancer, performer, photographer, cameraman, actor, "
        "actress, artist, clown, priest, monk, nun, parasailer, windsurfer, kitesurfer, kite surfer, kite boarder, "
        "kiteboarder, paraglider, boarder, male, female"
    ),
    "bicycle": "bicycle, tricycle, mountain bike, road bike, ten speed bike",
    "car": (
        "car, automobile, sedan, taxi, taxi cab, cab, taxicab, hatchback, convertible, minivan, limousine, limo, coupe"
    ),
    "motorcycle": "motorcycle, motorbike, motor bike, motor cycle, moped, scooter, motor scooter, dirt bike, vespa",
    "airplane": (
        "airplane, plane, aeroplane, air plane, aircraft, jet, jet plane, airliner, jetliner, biplane, seaplane, "
        "propeller plane, fighter jet, jumbo jet"
    ),
    "bus": "bus, double decker, double decker bus, school bus, tour bus, minibus",
    "train": (
        "train, locomotive, train car, train engine, train cart, railroad car, rail car, railcar, subway car, subway, "
        "steam engine, freight car, box car, boxcar, monorail"
    ),
    "truck": (
        "truck, pickup, pick up truck, firetruck, fire truck, fire engine, semi, semi truck, tow truck, dump truck, "
        "lorry, big rig, tractor trailer, food truck"
    ),
    "boat": (
        "boat, ship, sailboat, sail boat, sailing boat, canoe, kayak, yacht, ferry, raft, rowboat, row boat, gondola, "
        "speedboat, speed boat, tugboat, tug boat, barge, catamaran, dinghy, motorboat, motor boat, cruise ship, "
        "houseboat, fishing boat"
    ),
    "traffic light": (
        "traffic light, traffic signal, traffic signal light, stop light, stoplight, street signal, signal light"
    ),
    "fire hydrant": "fire hydrant, hydrant, fire plug",
    "stop sign": "stop sign",
    "parking meter": "parking meter, meter",
    "bench": "bench, park bench",
    "bird": (
        "bird, pigeon, seagull, sea gull, gull, duck, duckling, goose, parrot, owl, eagle, hawk, falcon, swan, "
        "rooster, hen, peacock, ostrich, crow, raven, robin, sparrow, pelican, penguin, flamingo, heron, egret, stork, "
        "hummingbird, finch, parakeet, cockatoo, dove, woodpecker, vulture, blue jay"
    ),
    "cat": "cat, kitten, kitty, feline, tabby",
    "dog": (
        "dog, puppy, pup, doggy, doggie, canine, poodle, terrier, retriever, labrador, bulldog, bull dog, german "
        "shepherd, hound, beagle, chihuahua, dachshund, corgi, pug, husky, collie, dalmatian, mutt, rottweiler, "
        "spaniel, schnauzer, greyhound, pit bull, great dane, boxer dog, sheepdog, sheep dog, sled dog"
    ),
    "horse": "horse, pony, foal, colt, mare, stallion, racehorse, race horse, horseback",
    "sheep": "sheep, lamb, ewe, ram",
    "cow": "cow, cattle, bull, calf, ox, oxen, heifer, longhorn, bovine",
    "elephant": "elephant, baby elephant",
    "bear": "bear, polar bear, grizzly, grizzly bear, brown bear, black bear, bear cub, panda, panda bear",
    "zebra": "zebra",
    "giraffe": "giraffe, giraff, girafee",
    "backpack": "backpack, back pack, book bag, bookbag, rucksack, knapsack",
    "umbrella": "umbrella, parasol",
    "handbag": "handbag, hand bag, purse, pocketbook, tote, tote bag, shoulder bag",
    "tie": "tie, necktie, neck tie, bow tie, bowtie",
    "suitcase": "suitcase, suit case, luggage, baggage, briefcase, duffel bag, duffle bag",
    "frisbee": "frisbee, frisbie, frisby, flying disc, flying disk, disc, disk",
    "skis": "skis, pair of skis, ski poles and skis, water skis, snow skis",
    "snowboard": "snowboard, snow board",
    "sports ball": (
        "ball, soccer ball, tennis ball, beach ball, volley ball, foot ball, basket ball, bowling ball, golf ball"
    ),
    "kite": "kite",
    "baseball bat": "baseball bat, bat, base ball bat",
    "baseball glove": "baseball glove, baseball mitt, catcher mitt, catchers mitt, catcher glove, mitt",
    "skateboard": "skateboard, skate board, longboard, long board",
    "surfboard": (
        "surfboard, surf board, body board, bodyboard, boogie board, paddle board, paddleboard, wakeboard, wind "
        "surfboard"
    ),
    "tennis racket": "tennis racket, tennis racquet, tennis raquet, tennis racked, racket, racquet, raquet",
    "bottle": "bottle, water bottle, wine bottle, beer bottle",
    "wine glass": (
        "wine glass, wineglass, glass of wine, glasses of wine, glass of red wine, glass of white wine, champagne "
        "glass, champagne flute, goblet"
    ),
    "cup": "cup, mug, coffee cup, coffee mug, tea cup, teacup, paper cup",
    "fork": "fork",
    "knife": "knife, butter knife, steak knife",
    "spoon": "spoon, teaspoon, tablespoon",
    "bowl": "bowl",
    "banana": "banana",
    "apple": "apple",
    "sandwich": (
        "sandwich, sandwhich, sandwitch, burger, hamburger, cheeseburger, grilled cheese, panini, submarine sandwich, "
        "sub sandwich, club sandwich"
    ),
    "orange": "oranges, tangerine, clementine, orange slice, slice of orange, orange half, mandarin orange",
    "broccoli": "broccoli, brocolli, brocoli, broccolli",
    "carrot": "carrot",
    "hot dog": "hot dog, hotdog, hot dog bun, corn dog, chili dog, chilli dog, chili cheese dog",
    "pizza": "pizza, pizza pie, slice of pizza",
    "donut": "donut, doughnut, dough nut, do nut",
    "cake": "cake, cupcake, cup cake, cheesecake, cheese cake, birthday cake, wedding cake, layer cake, coffee cake",
    "chair": (
        "chair, armchair, arm chair, stool, bar stool, barstool, rocking chair, recliner, lawn chair, beach chair, "
        "lounge chair, office chair, high chair, folding chair"
    ),
    "couch": "couch, sofa, loveseat, love seat, sectional",
    "potted plant": "potted plant, house plant, houseplant, pot plant, potted flower, potted tree",
    "bed": "bed, bunk bed, bunkbed, twin bed, canopy bed",
    "dining table": (
        "table, dining table, dinner table, kitchen table, dining room table, coffee table, picnic table, tabletop, "
        "table top, desk, desk top"
    ),
    "toilet": "toilet, toilet bowl, toilet seat, commode, urinal",
    "tv": (
        "tv, television, television set, tv set, flat screen, flatscreen, flat screen tv, flat screen television, t v"
    ),
    "laptop": "laptop, lap top, laptop computer, lap top computer, macbook, netbook, notebook computer",
    "mouse": "mouse, computer mouse",
    "remote": (
        "remote, remote control, remote controller, tv remote, television remote, wii remote, wiimote, wii mote, wii "
        "controller, game controller, video game controller, controller, nintendo wii controller"
    ),
    "keyboard": "keyboard, key board, computer keyboard",
    "cell phone": (
        "cell phone, cellphone, mobile phone, smartphone, smart phone, phone, iphone, telephone, cellular phone, flip "
        "phone"
    ),
    "microwave": "microwave, microwave oven",
    "oven": "oven, stove, stove top, stovetop, stove top oven, cooktop",
    "toaster": "toaster",
    "sink": "sink, washbasin, wash basin",
    "refrigerator": "refrigerator, fridge, refridgerator, refrigerator freezer, freezer, mini fridge",
    "book": "book, text book, textbook, comic book, cook book, cookbook, paperback",
    "clock": "clock, alarm clock, wall clock, grandfather clock, clock tower, clocktower, clock face",
    "vase": "vase",
    "scissors": "scissors, pair of scissors, scissor, shears",
    "teddy bear": (
        "teddy bear, teddy, stuffed bear, stuffed teddy bear, stuffed animal bear, toy bear, stuffed animal, stuffed "
        "toy, plush toy, plush bear, bear doll"
    ),
    "hair drier": "hair drier, hair dryer, hairdryer, hairdrier, blow dryer, blow drier, blowdryer",
    "toothbrush": "toothbrush, tooth brush, electric toothbrush",
}
"""Each kind by its name in COCO, with the words and phrases that name it and nothing else."""

EITHER: dict[str, str] = {
    "bike": "bicycle, motorcycle",
    "van": "car, truck, bus",
    "suv": "car, truck",
    "jeep": "car, truck",
    "trolley": "train, bus",
    "trolley car": "train, bus",
    "street car": "train, bus",
    "streetcar": "train, bus",
    "cable car": "train, bus",
    "tram": "train, bus",
    "computer": "laptop, tv, keyboard",
    "desktop computer": "tv, keyboard, laptop",
    "computer monitor": "tv, laptop",
    "computer screen": "tv, laptop",
    "monitor": "tv, laptop",
    "toaster oven": "oven, toaster, microwave",
}
"""Words that stand for one of several kinds; the first gives its name to what was invented."""

MODIFIERS = "baby, adult, male, female, mother, father, family, child, kid, passenger, commuter, tourist"
"""Words for people that say something else right before another thing: a baby elephant, a passenger train."""

NOTHING = (
    "couple of, pitcher of, family of, team of, at bat, to bat, train station, train track, train platform, train "
    "yard, train depot, train rail, train bridge, train tunnel, train terminal, railroad tie, bus stop, bus station, "
    "bus terminal, bus depot, bus lane, car park, car seat, car mirror, car door, side car, bike rack, bike lane, bike "
    "path, bicycle rack, bicycle lane, motorcycle helmet, bike helmet, boat dock, boat ramp, boat house, airplane "
    "hangar, jet ski, jet stream, truck stop, truck bed, bed of, flower bed, river bed, bed spread, bed room, bed "
    "sheet, toilet paper, toilet tissue, toilet brush, toilet roll, tv show, television show, tv station, phone booth, "
    "phone pole, telephone booth, telephone pole, telephone line, phone line, telephone wire, mouse pad, mickey mouse, "
    "minnie mouse, book shelf, book case, book store, table tennis, ping pong table, pool table, chair lift, ball "
    "game, ball field, ball park, ball cap, ball gown, ball room, ball pit, meat ball, disco ball, skate park, "
    "skateboard park, skateboard ramp, bird house, bird bath, bird cage, bird feeder, bird nest, bird seed, dog house, "
    "dog food, dog park, dog bowl, dog bed, dog leash, cat food, cat bed, cat tree, horse shoe, rocking horse, saw "
    "horse, carousel horse, sea horse, bull pen, bull dozer, bear statue, gummy bear, apple computer, apple laptop, "
    "apple logo, apple store, apple product, apple juice, apple cider, apple sauce, apple tree, apple pie, pan cake, "
    "crab cake, rice cake, cake pan, cake stand, cake plate, pizza box, pizza oven, pizza pan, pizza cutter, pizza "
    "shop, pizza place, pizza parlor, pizza restaurant, banana tree, banana bread, banana peel, cup holder, measuring "
    "cup, suction cup, world cup, bottle cap, bottle opener, fork lift, fork in the road, sink hole, oven mitt, oven "
    "glove, water meter, kite string, knife block, knife rack, knife holder, remote area, remote location, remote "
    "field, remote road, remote beach, no one, action figure"
)
"""Phrases with such a word that name none of these kinds."""

HINTS: dict[str, str] = {
    "he, she, him, himself, herself, hand, arm, finger, selfie, everyone, everybody": "person",
    "bag": "handbag, backpack, suitcase",
    "board": "surfboard, snowboard, skateboard",
    "ski, skier, skiing": "skis, person",
    "surfing, surf, surfs, surfer": "surfboard, person",
    "snowboarding, snowboarder": "snowboard, person",
    "skateboarding, skateboarder, skateboards": "skateboard, person",
    "skating, skater": "skateboard, person",
    "biking, bicycling, cycling, cyclist, bicyclist": "bicycle, person",
    "motorcyclist, biker": "motorcycle, person",
    "batting, batter": "baseball bat, person",
    "baseball, football, basketball, volleyball, soccer": "sports ball",
    "kiteboarding, kitesurfing, kite boarding, kite surfing, kite boarder, kite surfer": "kite, surfboard, person",
    "tennis": "tennis racket, sports ball",
    "book shelf, bookshelf, book case, bookcase": "book",
    "glass": "cup, wine glass",
    "wine": "wine glass, bottle",
    "coffee, tea, drink, beverage": "cup",
    "silverware, utensil, cutlery": "fork, knife, spoon",
    "sub": "sandwich",
    "hoagie": "sandwich, hot dog",
    "pastry": "donut, cake",
    "dessert": "cake",
    "seat, seating": "chair, bench, couch",
    "plant, flower pot, fern": "potted plant",
    "mattress": "bed",
    "television screen, screen": "tv, laptop",
    "signal": "traffic light",
    "orange": "orange",
    "toy, plush": "teddy bear",
    "cub": "bear",
    "vehicle": "car, truck, bus",
    "tablecloth, table cloth": "dining table",
    "brushing teeth": "toothbrush",
}
"""Words of references that are no names, and show well enough that the kind is in the picture."""


Kinds: TypeAlias = tuple[str, ...]
"""The kinds of objects that a word may stand for."""

_Phrases: TypeAlias = Mapping[tuple[str, ...], Kinds]

_PLURALS = {"person": "people", "child": "children", "goose": "geese", "mouse": "mice", "human": "humans"}
_BEFORE_FRUIT = frozenset({"a", "an", "one", "single", "peeled", "sliced", "half", "whole", "fresh", "ripe"})
_AFTER_FRUIT = frozenset(
    {
        "",
        "on",
        "in",
        "is",
        "with",
        "sitting",
        "sits",
        "next",
        "that",
        "cut",
        "lying",
        "laying",
        "beside",
        "inside",
        "slice",
    }
)


def chair(
    candidates: Sequence[str], references: Sequence[Sequence[str]], image_index: Sequence[int] | None = None
) -> MetricResult:
    """Return the share of candidates that name a thing none of the references of their image names.

    Candidate ``i`` belongs to image ``i``, or to ``image_index[i]`` when that is given.
    """
    images = range(len(candidates)) if image_index is None else image_index
    if not len(candidates) or len(images) != len(candidates) or max(images) >= len(references):
        raise InputError(f"{len(candidates)} candidates but references of {len(references)} images")
    pairs = zip(candidates, images, strict=True)
    return mean_result("CHAIR", np.array([bool(invented(text, references[image])) for text, image in pairs], float))


def invented(candidate: str, references: Iterable[str]) -> list[str]:
    """Return the kinds of things that a caption names and no reference does, each once."""
    there = frozenset[str]().union(*map(_shown, references))
    return list(dict.fromkeys(kinds[0] for kinds in named(candidate) if there.isdisjoint(kinds)))


@lru_cache(maxsize=1 << 16)
def named(text: str) -> tuple[Kinds, ...]:
    """Return the things that a text names, in its order: for each the kinds of objects its name may stand for."""
    tokens = _tokens(text)
    found = _scan(tokens, _names())
    starts, modifiers = {start for start, _, _ in found}, _listed(MODIFIERS)
    things = [kinds for start, end, kinds in found if not (tokens[start] in modifiers and end in starts)]
    return tuple(kinds for kinds in (*things, ("orange",) if _is_fruit(tokens) else ()) if kinds)


@lru_cache(maxsize=1 << 16)
def _shown(text: str) -> frozenset[str]:
    """Return the kinds of things that are in the picture of which a reference is given."""
    hints = _scan(_tokens(text), _hints())
    return frozenset(kind for kinds in (*named(text), *(kinds for _, _, kinds in hints)) for kind in kinds)


def _tokens(text: str) -> list[str]:
    plain = text.replace("-", " ").replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
    return [word.removesuffix("'s").replace("'", "") for word in words(plain)]


def _scan(tokens: Sequence[str], phrases: _Phrases) -> list[tuple[int, int, Kinds]]:
    """Return where phrases begin and end and what they stand for; a longer one goes before the words in it."""
    longest = max(map(len, phrases))
    found, place = [], 0
    while place < len(tokens):
        for end in range(min(place + longest, len(tokens)), place, -1):
            kinds = phrases.get(tuple(tokens[place:end]))
            if kinds is not None:
                found.append((place, end, kinds))
                place = end
                break
        else:
            place += 1
    return found


def _is_fruit(tokens: Sequence[str]) -> bool:
    """Tell whether an orange is named, and not the colour."""
    around = ["", *tokens, "", ""]
    for before, word, after, then in zip(around, tokens, around[2:], around[3:], strict=False):
        joined = after in ("and", "or") and then in ("a", "an", "some", "the")
        if word == "orange" and before in _BEFORE_FRUIT and (after in _AFTER_FRUIT or joined):
            return True
    return False


@cache
def _names() -> _Phrases:
    phrases: dict[tuple[str, ...], Kinds] = dict.fromkeys(_forms(NOTHING), ())
    phrases |= {phrase: (kind,) for kind, listed in THINGS.items() for phrase in _forms(listed)}
    return phrases | {phrase: _listed(kinds) for name, kinds in EITHER.items() for phrase in _forms(name)}


@cache
def _hints() -> _Phrases:
    return {phrase: _listed(kinds) for listed, kinds in HINTS.items() for phrase in _forms(listed)}


@cache
def _listed(text: str) -> tuple[str, ...]:
    return tuple(text.split(", "))


def _forms(listed: str) -> Iterable[tuple[str, ...]]:
    """Yield each phrase of a list as words, and its plural."""
    for phrase in _listed(listed):
        *first, last = phrase.split()
        yield (*first, last)
        yield (*first, _plural(last))


def _plural(word: str) -> str:
    if word in _PLURALS:
        return _PLURALS[word]
    if word.endswith("man"):
        return f"{word[:-2]}en"
    if word.endswith("y") and word[-2:-1] not in "aeiou":
        return f"{word[:-1]}ies"
    if word in ("knife", "calf", "shelf"):
        return f"{word.rstrip('e')[:-1]}ves"
    return f"{word}es" if word.endswith(("s", "x", "z", "ch", "sh")) else f"{word}s"
