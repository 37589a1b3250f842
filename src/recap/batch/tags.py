"""Keywords of a picture: the things that the captions retrieved for it, and the sentences written about it, agree on.

Two opinions are asked for. What share of the retrieved captions, each with the weight of its vote, and of the sentences
of the language model names the thing? And how near is the word alone to the picture in caption space? A keyword's score
is the geometric mean of both, so that neither an accident of retrieval nor a word that fits anything gets far.

English captions are cut without a tagger: a thing ends where a preposition, a verb or the sentence goes on.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial

from recap.captioner import ReCap, raise_error
from recap.errors import ImageError
from recap.language.words import COMMON_WORDS, is_english, same_word, vote_weights, words
from recap.packs.builtin import CONCEPTS as CONCEPT_SOURCE
from recap.types import Evidence, ImageLike, Tag, Vectors

TAG_POOL = 100
"""Number of retrieved captions that are looked at."""
CONCEPTS = 8
"""Number of sentences from the pack's vocabulary of concepts that are looked at besides."""
TAG_SCORE = 0.45
"""Least score of a keyword: about four in five of those above are right; see docs/outputs.md."""

_FIT = 0.5
"""Aligned cosine of a word with a picture from which on it fits fully."""
_LEAST_FIT = 0.2
"""Aligned cosine below which a word does not fit, whatever the captions say; less where a lower score is asked for."""
_LEAST_SUPPORT = 0.02
_LEAST_THING = 0.4
"""Share of its occurrences in which a word must stand where a thing is named."""
_LEAST_ARTICLES = 0.05
"""Share of its occurrences in which a word that looks like a verb must have an article."""
_COMPOUND = 0.5
"""Share of its occurrences in which a word must have the same one before it to form one keyword with it."""

_BEFORE = frozenset(("of", "and", "in", "with", "on"))
_AFTER_TEXT = """
in on at of with and or is are was were by near over under behind beside next to for from that which while as into
onto around through during above below against along up down out off who has have it its sitting standing
"""
_AFTER = frozenset(_AFTER_TEXT.split())
_NO_THING_TEXT = """
picture pictures photo photograph image view views close closeup shot top side front back background foreground
middle group couple bunch number lot lots pair kind type piece pieces area part parts end edge line row way thing
things something someone somebody day time place set body variety display scene inside outside ground surface other
others left right corner distance center centre next down around low black white red green blue yellow brown grey
gray orange pink purple dark bright colorful colourful large small big little tall old young new long short
different various full empty open many one two three four five six seven eight nine ten several each all both
another few half well together here not no also just like really nice good great same shown seen made laid
"""
_NO_THING = frozenset(_NO_THING_TEXT.split())


def tag(captioner: ReCap, image: ImageLike, *, min_score: float = TAG_SCORE) -> tuple[Tag, ...]:
    """Return the keywords of an image, best first."""
    (found,) = tag_each(captioner, [image], min_score=min_score)
    return raise_error(found)


def tag_each(
    captioner: ReCap, images: Iterable[ImageLike], *, min_score: float = TAG_SCORE
) -> Iterator[tuple[Tag, ...] | ImageError]:
    """Yield for each image, in order, its keywords or the reason why there are none."""
    return captioner.describe_each(images, partial(tag_vectors, captioner, min_score=min_score))


def tag_vectors(captioner: ReCap, vectors: Vectors, *, min_score: float = TAG_SCORE) -> list[tuple[Tag, ...]]:
    """Return keywords for images whose vectors are there already, as ``ReCap.encode_each`` gives them."""
    store, language = captioner.datastore, captioner.settings.language
    queries = captioner.alignment.transform(captioner.vectors_of(vectors))
    concepts = store.search(queries, CONCEPTS, sources=CONCEPT_SOURCE)
    proposals = captioner.configured(pool=TAG_POOL).propose(vectors)
    tags = []
    for proposal, query, *found in zip(proposals, queries, concepts.ids, concepts.similarities, strict=True):
        evidence = tuple(dict.fromkeys((*proposal.evidence, *store.evidence(*found))))
        drafts = [text for text, draft in proposal.drafts.items() if draft is not None]
        keywords = find_keywords(evidence, drafts, language)
        texts = [describe_keyword(word, language) for word in keywords] or [""]
        cosines = captioner.alignment.transform_texts(captioner.encoder.encode_texts(texts)) @ query
        tags.append(rank_keywords(keywords, cosines.tolist()[: len(keywords)], min_score))
    return tags


def find_keywords(evidence: Sequence[Evidence], drafts: Sequence[str], language: str = "en") -> dict[str, float]:
    """Return the things that captions and drafts name, with the share of both that does, from 0 to 1.

    Words that differ by their ending count as one, in the form that is met most often.
    """
    shares = _shares(list(zip((item.text for item in evidence), vote_weights(evidence), strict=True)))
    written = _shares([(text, 1.0) for text in drafts])
    weight = 0.5 if drafts else 1.0
    support = Counter({word: weight * share for word, share in shares.items()})
    support.update({word: 0.5 * share for word, share in written.items()})
    texts = [words(text) for text in (*(item.text for item in evidence), *drafts)]
    things = {word: share for word, share in support.items() if _is_thing(word, texts, language)}
    merged = _merged(things, language)
    return _compounds(merged, texts) if is_english(language) else merged


def describe_keyword(word: str, language: str = "en") -> str:
    """Return the text by which a keyword is compared with a picture."""
    return f"a photo of a {word}" if is_english(language) else word


def rank_keywords(support: Mapping[str, float], cosines: Sequence[float], min_score: float) -> tuple[Tag, ...]:
    """Return the keywords that reach a score, best first; ``cosines`` are those of the words with the picture."""
    least = min(_LEAST_FIT, min_score)
    tags = [
        Tag(word, math.sqrt(min(share, 1.0) * min(max(cosine, 0.0) / _FIT, 1.0)))
        for (word, share), cosine in zip(support.items(), cosines, strict=True)
        if max(cosine, 0.0) >= least
    ]
    return tuple(sorted((tag for tag in tags if tag.score >= min_score), key=lambda tag: (-tag.score, tag.text)))


def _shares(weighted: Sequence[tuple[str, float]]) -> Counter[str]:
    """Return for each word the share of the weight of all texts that have it."""
    shares: Counter[str] = Counter()
    total = math.fsum(weight for _, weight in weighted)
    for text, weight in weighted:
        for word in set(words(text)):
            shares[word] += weight / total  # type: ignore[assignment]  # a counter of shares
    return shares


def _is_thing(word: str, texts: Sequence[tuple[str, ...]], language: str) -> bool:
    """Tell whether a word stands mostly where a thing is named; in other languages only, whether it says anything."""
    if word in COMMON_WORDS or len(word) < 3 or word.isnumeric():
        return False
    if not is_english(language):
        return True
    if word in _NO_THING:
        return False
    there = named = articles = 0
    for text in texts:
        for place, other in enumerate(text):
            if other == word:
                before = text[place - 1] if place else "a"
                ends = place + 1 == len(text) or text[place + 1] in _AFTER
                there, named = there + 1, named + (ends and (before not in _AFTER or before in _BEFORE))
                articles += before in ("a", "an", "the")
    # a verb has the neighbours of a thing, but no article
    verb = (word.endswith("ed") and len(word) > 5) or (word.endswith("ing") and articles < _LEAST_ARTICLES * there)
    return named >= _LEAST_THING * there and not verb


def _merged(things: Mapping[str, float], language: str) -> dict[str, float]:
    """Return words with those that differ by their ending added; the strongest form stands for all."""
    kept: dict[str, float] = {}
    for word in sorted(things, key=lambda word: (-things[word], word)):
        same = next((other for other in kept if same_word(word, other, language)), word)
        # a text may have both forms, so the sum can be too much
        kept[same] = min(1.0, kept.get(same, 0.0) + things[word])
    return {word: share for word, share in kept.items() if share >= _LEAST_SUPPORT}


def _compounds(things: Mapping[str, float], texts: Sequence[tuple[str, ...]]) -> dict[str, float]:
    """Return keywords in which a thing stands with the word that it nearly always has before it: teddy bear."""
    named = {}
    for word, share in things.items():
        before = Counter(
            text[place - 1] if place else "" for text in texts for place, w in enumerate(text) if w == word
        )
        other, count = before.most_common(1)[0]
        joined = count >= _COMPOUND * before.total() and other and other not in COMMON_WORDS | _NO_THING | _AFTER
        named[f"{other} {word}" if joined else word] = share
    return named
