"""Captions to tokens as coco-caption makes them, without Java.

Captions are lines of one text, as in coco-caption: now and then a token depends on the line that follows.
Tokens that are only punctuation are left out. A line break inside a caption counts as a space, where the original would
shift all later captions by one.

The rules of the tokenizer that coco-caption runs in Java.

That program is a Penn Treebank tokenizer of 2014. These rules were written from its behaviour: probes and all COCO
captions went in, and the rules say what came out. Like the original they take, at each place of the text, the longest
of all matches; of two equally long ones the earlier rule wins.

What is kept on purpose, because published numbers depend on it: brackets become ``-lrb-`` and stay; ``!!`` stays while
``!`` goes; ``end.Start`` is one token; and a letter with a stop (``letter K.``) loses the stop if the text goes on with
a word such as ``The``, even when that word stands in the next caption.

What differs: letters that Unicode has gained since 2012 count as letters here and are dropped by the original, and soft
hyphens are left out before anything else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from itertools import chain, pairwise
from string import ascii_lowercase
from typing import Any

import numpy as np
import numpy.typing as npt

from recap.errors import InputError
from recap.metrics.ngrams import Ints, Sentences, Small, offsets_of

# --- kinds of characters ----------------------------------------------------------------------------------------

# Symbols that are a token each; other characters beyond ASCII are letters, digits, or dropped.
_SYMBOLS = (
    "\xa1\xa5-\xa9\xac\xae-\xb4\xb6-\xb9\xbf\xd7\xf7\u037e\u0387\u0589\u05be\u05c0\u05c3\u05c6\u05f3-\u0603"
    "\u0606-\u060c\u0614\u061b\u061e\u061f\u066a\u066d\u06d4\u0700-\u070d\u07f6-\u07f8\u0964\u0965\u0e3f\u0e4f\u1fbd"
    "\u2016\u2017\u201a\u201e-\u2023\u2030-\u2038\u203b\u203e-\u2042\u2044\u2070\u2074-\u207e\u2080-\u208e\u20a4\u2100"
    "\u2101\u2103-\u2106\u2108\u2109\u2114\u2116-\u2118\u211e-\u2123\u2125\u2127\u2129\u212e\u213a\u213b\u2140-\u2144"
    "\u214a-\u214d\u214f\u2155-\u215e\u2190-\u2bff\u3001\u3002\u3012\u30fb\uff01-\uff0f\uff1a-\uff20\uff3b-\uff40"
    "\uff5b-\uff65\uffe0\uffe1\uffe5\uffe6"
)
# Accents and vowel signs written as characters of their own: part of a word that starts with a letter.
_MARKS = (
    "\u02c2-\u02c5\u02d2-\u02df\u02e5-\u02eb\u02ed\u02ef-\u036f\u0375\u0384\u0385\u03f6\u0483-\u0487\u055a-\u055f"
    "\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0615-\u061a\u064b-\u065e\u0670\u06d6-\u06e4\u06e7-\u06ed\u06fd"
    "\u06fe\u070f\u0711\u0730-\u074a\u07a6-\u07b0\u07eb-\u07f3\u0900-\u0903\u093c\u093e-\u094e\u0951-\u0955\u0962\u0963"
    "\u0981-\u0983\u09bc\u09be-\u09cd\u09d7\u09e2\u09e3\u0a01-\u0a03\u0a3c-\u0a4d\u0a81-\u0a83\u0abc\u0abe-\u0acd\u0b82"
    "\u0bbe-\u0bcd\u0c01-\u0c03\u0c3e-\u0c56\u0d3e-\u0d48\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ecd"
)
# Numerals that Python takes for word characters and the original does not.
_NUMERALS = (
    "\xb2\xb3\xb9\xbc-\xbe\u09f4-\u09f9\u0b72-\u0b77\u0bf0-\u0bf2\u0c78-\u0c7e\u0d58-\u0d5e\u0d70-\u0d78\u0f2a-\u0f33"
    "\u1369-\u137c\u16ee-\u16f0\u17f0-\u17f9\u19da\u2070\u2074-\u2079\u2080-\u2089\u2150-\u2189\u2460-\u249b"
    "\u24ea-\u24ff\u2776-\u2793\u2cfd\u3007\u3021-\u3029\u3038-\u303a\u3192-\u3195\u3220-\u3229\u3248-\u324f"
    "\u3251-\u325f\u3280-\u3289\u32b1-\u32bf\ua6e6-\ua6ef\ua830-\ua835"
)
_BEYOND = f"{_NUMERALS}\U00010000-\U0010ffff"
_ENTITY = "&[aeiouAEIOU](?:acute|grave|uml);"

_AN = rf"[^\W_{_BEYOND}]"  # a letter or digit
_U = rf"[^\W\d_{_BEYOND}]"  # a letter that is one character
_L = rf"(?:[^\W\d_{_BEYOND}]|[{_MARKS}]|{_ENTITY})"  # a letter
_LD = rf"(?:[^\W_{_BEYOND}]|[{_MARKS}]|{_ENTITY})"  # what a word that starts with a letter goes on with
_D = r"\d"
_H = "[-\u058a\u2010\u2011]"  # hyphens
_AP = "(?:['\u2019]|&apos;)"  # apostrophes
_AQ = "(?:['\u2019`\u2018\u201b]|&apos;)"  # apostrophes and what people type for them
_SP = "[ \xa0]"


def _any_case(*words: str) -> str:
    """Match any of the words in upper, lower or mixed case, the longest first."""
    letters = ("".join(f"[{c}{c.upper()}]" if c.isalpha() else c for c in word) for word in words)
    return "(?:" + "|".join(sorted(letters, key=len, reverse=True)) + ")"


def _words(text: str) -> list[str]:
    return text.split()


# --- words the original knows -----------------------------------------------------------------------------------

# Abbreviations that may end a sentence, and those that never do: both keep their stop.
_ENDING = _words(
    "al ala apr ariz assn aug bhd bldg blvd bros calif co colo conn corp cos ct dak dec esq est etc ext feb fla fri ga "
    "inc ind intl jan jr jul jun kan kans ky ltd mar md mich minn mo mon mont neb nev nov oct okla penn plc rd rt sep "
    "sept seq sq sr sys tel tenn thu thurs tue tues univ va vt wed wis wisc wyo"
)
_TITLES = _words(
    "adj adm adv alex asst atty ave brig capt cf cie cmdr col cpl dept det dr drs elec ens ft gen gov govs hon insp "
    "invt jos lt maj messrs mlle mme mr mrs ms msgr mt natl pfc ph pres prof pvt rep reps rev sen sens sfc sgt spc st "
    "ste supt vs wm"
)
_STATES = _words("ark az del ill la mass miss ore pa tex wash")  # with a capital only
_BEFORE_NUMBERS = _words("art ca fig figs no nos op pp prop")
# Words whose stop may be part of them.
ABBREVIATIONS = frozenset(
    [*_ENDING, *_TITLES, *_STATES, *_BEFORE_NUMBERS, *ascii_lowercase, *_words("mfg mtg ppte ppty pte ptes pty ptys")]
)
_STARTERS = _words(
    "a about according additionally after an as at but earlier he her here however if in it last many more now once "
    "one other our she since so some such that the their then there these they this we what when while yet you"
)
SPLIT_WORDS = {
    "cannot": ("can", "not"),
    "gonna": ("gon", "na"),
    "gotta": ("got", "ta"),
    "wanna": ("wan", "na"),
    "lemme": ("lem", "me"),
    "gimme": ("gim", "me"),
}
_WITH_APOSTROPHE = _words(
    "e'er c'mon s'mores c'est somethin' dunkin' ol' cap'n nat'l nor'easter li'l ev'ry 'til 'till 'cause"
)
_FILE_TYPES = _words(
    "bat bmp c cgi class cpp dll doc docx exe gif gz h htm html jar java jpeg jpg mov pdf php pl png ppt ps py sql tar "
    "txt wav x xml zip"
)


def _capitalised(words: Sequence[str]) -> str:
    return "(?:" + "|".join(w[0].upper() + _any_case(w[1:]) if w[1:] else w.upper() for w in words) + ")"


def _rules() -> list[str]:
    """Return the patterns, in the order that decides between matches of equal length.

    A group is trailing context: it counts for the length of a match but is not part of the token.
    """
    clitic = "(?:[sSdDmM]|[lL][lL]|[rR][eE]|[vV][eE])"
    ending = f"(?:{_any_case(*_ENDING)}|{_capitalised(_STATES)}|[pP]p?t[ey]s?|{_any_case('ph', 'ed')}[.][dD])"
    abbreviation = f"(?:{ending}|{_any_case(*_TITLES)}|[mM][ft]g)"
    name = "[A-Za-z][A-Za-z0-9_.:-]*"
    attribute = rf"[ \t]+{name}(?:[ \t]*=[ \t]*(?:\"[^\"\n]*\"|'[^'\n]*'))?"
    tag = rf"<{name}(?:{attribute})*[ \t]*/?>|</{name}[ \t]*>|<[!?][A-Za-z-][^>\n]*>"
    stop = r"\s\"()<>|"
    path = rf"/[^{stop}]+[^{stop}{{}}.!?,-]"
    label = r"[^\sA-Z0-9\"'`<>|.!?(){},$:;=_/^\\\[\]@-]"
    mail = r"[^\s\"()<>{|}.]"
    face = "[-'<>=^x~]"
    part = f"[A-Za-z0-9]+(?:{_H}[A-Za-z]+)*"
    return [
        # tags, addresses
        tag,
        rf"{_any_case('http', 'https')}://[^{stop}{{}}]+[^{stop}{{}}.!?,-]",
        rf"{_any_case('www')}\.(?:[^{stop}{{}},.!?]+\.)+[A-Za-z]{{2,4}}(?:{path})?",
        rf"(?:{label}+\.)+{_any_case('com', 'net', 'org', 'edu')}(?:{path})?",
        rf"(?:<|&lt;)?[A-Za-z0-9](?:{mail}|\.)*@(?:{mail}+\.)*{mail}+>?",
        rf"#{_U}+|@[A-Za-z_][A-Za-z_0-9]*",
        # words
        rf"{_any_case(*SPLIT_WORDS)}(?!{_AN})",
        rf"{_AN}+(?:(?:{_H}|_){_AN}+)*",
        rf"{part}(?:\\?/{part}){{1,2}}",
        rf"{ending}\.(?=(-?\S))",
        rf"{_L}{_LD}*(?:[.!?]{_L}{_LD}*)*",
        r"[A-Za-z0-9][A-Za-z0-9.,]*(?:-[A-Za-z0-9]+)+",
        r"[A-Za-z0-9][A-Za-z0-9.,]*-(?:[A-Za-z0-9]+-)*[A-Za-z]\.(?:[A-Za-z]\.)+",
        rf"{_AN}+(?:\.{_AN}+)*\.{_any_case(*_FILE_TYPES)}(?=[\s!,.?]|\Z)",
        rf"[A-Z]+(?:(?:{_any_case('&amp;')}|[+&])[A-Z]+)+|[A-Z]+\$|[cC]\+\+|[cCfF]#",
        # abbreviations
        rf"[A-Za-z](?=(\.\s+(?:{_capitalised(_STARTERS)}|M[rRsS]\.|{tag})\s))",
        r"[A-Za-z]\.(?:[A-Za-z]\.)*",
        rf"{abbreviation}\.",
        rf"{_any_case(*_BEFORE_NUMBERS)}\.(?=(\s?\d))",
        rf"{_L}{_LD}*(?:[.!?]{_L}{_LD}*)*\.(?=([,;:]))",
        rf"{_AN}+(?:(?:{_H}|_){_AN}+)*\.(?=([,;:]))",
        r"[A-Za-z0-9][A-Za-z0-9.,]*(?:-[A-Za-z0-9]+)+\.(?=([,;:]))",
        # numbers, dates, fractions, telephones
        rf"[-+]?{_D}*(?:[.,:]{_D}+)+|[-+]?{_D}+",
        rf"{_D}{{1,2}}[-/]{_D}{{1,2}}[-/]{_D}{{2,4}}",
        rf"{_D}{{1,4}}(?:{_SP}|-){_D}{{1,4}}/{_D}{{1,4}}|{_D}{{1,4}}[/\u2044]{_D}{{1,4}}",
        r"[\u207a\u207b]?[\xb2\xb3\xb9\u2070\u2074-\u2079]+|[\u208a\u208b]?[\u2080-\u2089]+",
        rf"(?:\+*{_D}{{2,4}}(?:-|{_SP}))?(?:\({_D}{{2,3}}\)(?:-|{_SP})?|\+*{_D}{{2,4}}(?:-|{_SP}))"
        rf"{_D}{{3,4}}(?:-|{_SP})?{_D}{{3,5}}",
        # apostrophes
        rf"'{clitic}(?![A-Za-z])|(?:\u2019|&apos;){clitic}",
        rf"[A-Za-z]*[A-MO-Za-mo-z](?=([nN]{_AQ}[tT]))",
        rf"{_AN}+(?=({_AP}{clitic}))",
        rf"{_L}{_LD}*(?:[.!?]{_L}{_LD}*)*(?=({_AP}{clitic}))",
        rf"[nN]{_AQ}[tT]",
        rf"(?:{_AN}+{_H})*[dDlLoO]{_AQ}{_AN}{{2,}}(?:{_H}{_AN}+)*|[nA-HJ-XZ]{_AQ}{_U}{{2,}}",
        rf"{_U}+[aeiouyAEIOUY]{_AQ}[aeiouA-Z]{_U}*|[oO]{_AQ}[oO]",
        rf"[dDjJlL]{_AP}|[yY]{_AP}(?={_U})",
        rf"{_AP}[eE][mM]|'[nN](?:{_AP}|(?=\s|\Z))|(?:\u2019|&apos;)[nN]{_AP}?",
        _any_case(*_WITH_APOSTROPHE).replace("'", _AP),
        r"'[tT](?=([iI][sS]|[wW][aA][sS]))",
        rf"{_AP}[2-9]0[sS]|{_AP}{_D}{_D}(?=\s)",
        # punctuation
        r"[<>]?[:;=][-o*']?[()\[\]{@|\\DPdpO](?![A-Za-z0-9])",
        rf"{face}_{face}|\({face}[_.]?{face}\)|\(\^-\^\)",
        r"-(?:[lrLR][rcsRCS][bB])-",
        r"''|``|[\u2018\u2019\u201b-\u201d\u2039\u203a\xab\xbb`]{2}",
        r"[?!]+|\.{3,}|\.(?: \.){2,}|-+|@+|#+|\*+|_+|<<|>>|\\\*",
        rf"{_any_case('&amp;', '&lt;', '&gt;', '&quot;', '&apos;', '&nbsp;')}|&(?:mdash|ndash|MD);",
        r"&#\d+;|&(?:HT|UR|QL|LR|TL);",
        r".",
    ]


@cache
def _compiled() -> list[re.Pattern[str]]:
    return [re.compile(rule) for rule in _rules()]


# --- from matches to tokens -------------------------------------------------------------------------------------

_WRITTEN = {
    "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-", "\xa3": "#", "\xa4": "$", "\u20a0": "$", "\u20ac": "$",
    "\xa2": "cents", "\xbc": "1/4", "\xbd": "1/2", "\xbe": "3/4", "\u2153": "1/3", "\u2154": "2/3",
    "&amp;": "&", "&lt;": "<", "&gt;": ">",
}  # fmt: skip
_REMOVED = frozenset(_words("'' ' `` ` . ? ! , : - -- --- ---- ... ; \" &quot; &apos; &nbsp; &mdash; &ndash; &md;"))
_DROPPED = re.compile(
    rf"[^!-~\w{_SYMBOLS}{_MARKS}]|[{_NUMERALS}](?<![{_SYMBOLS}])|[\U00010000-\U0010ffff]|\.[. ]{{3,}}"
)
_QUOTES = re.compile(rf"{_AP}(?:s|d|m|ll|re|ve)|n{_AQ}t|[\u2018\u2019\u201b-\u201d\u2039\u203a\xab\xbb`]{{1,2}}")
_PLAIN_QUOTES = str.maketrans(
    {"\u2019": "'", "\u2018": "`", "\u201b": "`", "\u2039": "`", "\u203a": "'", "\u201c": "``", "\u201d": "''"}
    | {"\xab": "``", "\xbb": "''"}
)
_RENDERED = str.maketrans({"(": "-lrb-", ")": "-rrb-", " ": "\xa0", "\t": "\xa0"})


_PLAIN = re.compile(r"[A-Za-z]+(?=[ \n])")


def tokenize_span(text: str, start: int, stop: int) -> list[str]:
    """Return the tokens of ``text[start:stop]``, which may depend on what follows."""
    tokens: list[str] = []
    rules = _compiled()
    while start < stop:
        if text[start].isspace():
            start += 1
            continue
        plain = _PLAIN.match(text, start)
        if plain is not None:  # no rule finds more than the word
            word = plain[0].lower()
            tokens += SPLIT_WORDS.get(word, (word,))
            start = plain.end()
            continue
        reach, end = start, start
        for rule in rules:
            match = rule.match(text, start)
            if match is not None and (far := match.end(match.lastindex or 0)) > reach:
                reach, end = far, match.end()
        token = text[start:end].lower()
        if token in SPLIT_WORDS and reach == end:
            tokens += SPLIT_WORDS[token]
        elif token := _written(token):
            tokens.append(token)
        start = end
    return tokens


def _written(token: str) -> str:
    """Return a token as it is written, and nothing for one that is only punctuation."""
    if token in _WRITTEN:
        return _WRITTEN[token]
    if _QUOTES.fullmatch(token):
        token = token.replace("&apos;", "'").translate(_PLAIN_QUOTES)
    if token in _REMOVED or _DROPPED.fullmatch(token):
        return ""
    if "@" not in token:
        token = token.replace("&amp;", "&")
    return token.translate(_RENDERED)


# Line breaks and halves of characters become spaces, soft hyphens vanish. None of them is printable.
_SPACES = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029\0" + "".join(map(chr, range(0xD800, 0xE000)))
_CLEAN = str.maketrans(dict.fromkeys(_SPACES, " ") | {"\xad": None})

# Most pieces: a word, or words with hyphens, perhaps with 's, punctuation that goes, and quotation marks.
_SIMPLE = re.compile(r"""\"?([A-Za-z]+(?:-[A-Za-z]+)*)('s)?([,;:.!?]?\"?|\"[.,])""")

# Pieces between spaces whose tokens may depend on their neighbours: tags, "I." before "The", "no." before a number.
_DEPENDENT = re.compile(r"[<\s\x01-\x1f\x7f]|\.\d|[A-Za-z]\.\Z")
_ALONE, _NUMBER, _DEPENDS = range(3)


def tokenize(captions: Sequence[str]) -> list[list[str]]:
    """Return the tokens of each caption, as coco-caption would for the same captions in the same order."""
    vocabulary: dict[str, int] = {}
    sentences = encode(captions, vocabulary)
    names = list(vocabulary)
    flat = [names[word] for word in sentences.words.tolist()]
    return [flat[start:stop] for start, stop in pairwise(sentences.offsets.tolist())]


class Pieces(dict[str, tuple[int, Sequence[str]]]):
    """What is known about pieces between spaces: whether they stand alone, and the tokens of those that do."""

    def __missing__(self, piece: str) -> tuple[int, Sequence[str]]:
        self[piece] = known = _tokenize_piece(piece)
        return known


def encode(captions: Sequence[str], vocabulary: dict[str, int], pieces: Pieces | None = None) -> Sentences:
    """Tokenise captions and number the tokens; new tokens are added to ``vocabulary``.

    Nearly all pieces between spaces mean the same wherever they stand, and are tokenised once each; ``pieces``
    remembers them from call to call. Only lines with a piece that may depend on its neighbours are walked through.
    """
    if not len(captions):
        return Sentences(np.zeros(0, np.int64), np.zeros(1, np.int64))
    for kind in set(map(type, captions)):
        if not issubclass(kind, str):
            raise InputError(f"captions must be strings, and one is {kind.__name__}")
    known = Pieces() if pieces is None else pieces
    lines = [text if text.isprintable() else text.translate(_CLEAN) for text in captions]
    ids, ends, distinct = _split_at_spaces(lines)
    found = [known[piece] for piece in distinct]
    slow = _slow_lines(np.array([kind for kind, _ in found], np.int8)[ids], ends)
    numbers = (vocabulary.setdefault(token, len(vocabulary)) for _, part in found for token in part)
    offsets = offsets_of(np.array([len(part) for _, part in found]))
    table = Sentences(np.fromiter(numbers, np.int64, int(offsets[-1])), offsets)
    lengths = table.lengths[ids]
    for line in slow:
        lengths[ends[line] : ends[line + 1]] = 0
    starts = offsets_of(lengths)
    words = _expand(table, ids, lengths, starts)
    tokens = [tokenize_span(_with_context(lines, line), 0, len(lines[line])) for line in slow]
    return _fill(Sentences(words, starts[ends]), slow, tokens, vocabulary)


def _split_at_spaces(lines: Sequence[str]) -> tuple[Small, Ints, list[str]]:
    """Return for each piece its number, where the pieces of each line start and end, and the distinct pieces."""
    import pyarrow as pa
    import pyarrow.compute as pc

    # from buffers and to buffers: pyarrow's own ways from and to Python import pandas first, where it is there
    encoded = [line.encode() for line in lines]
    starts = offsets_of(np.fromiter(map(len, encoded), np.int64, len(encoded))).astype(np.int32)
    texts = pa.StringArray.from_buffers(len(lines), pa.py_buffer(starts), pa.py_buffer(b"".join(encoded)))
    split = pc.ascii_split_whitespace(texts)
    numbered = split.values.dictionary_encode()
    distinct: list[Any] = numbered.dictionary.to_pylist()
    ids, ends = (np.frombuffer(part.buffers()[1] or b"", np.int32) for part in (numbered.indices, split.offsets))
    return ids[: len(numbered)], ends[: len(lines) + 1].astype(np.int64), distinct


def _tokenize_piece(piece: str) -> tuple[int, Sequence[str]]:
    simple = _SIMPLE.fullmatch(piece)
    if simple and not (simple[3] and simple[1].lower() in ABBREVIATIONS):
        word = simple[1].lower()
        return _ALONE, (word, "'s") if simple[2] else SPLIT_WORDS.get(word, (word,))
    if _DEPENDENT.search(piece):
        return _DEPENDS, ()
    kind = _NUMBER if any(map(str.isdigit, piece)) else _ALONE
    return kind, tokenize_span(piece + "\n", 0, len(piece))


def _slow_lines(kinds: npt.NDArray[np.int8], ends: Ints) -> list[int]:
    dependent = np.searchsorted(ends, np.flatnonzero(kinds == _DEPENDS), "right") - 1
    # two numbers in a row may be one token, as in 22 3/4
    numbers = np.searchsorted(ends, np.flatnonzero(kinds == _NUMBER), "right") - 1
    twice = numbers[1:][numbers[1:] == numbers[:-1]]
    # nothing follows the last line, not even white space
    slow: list[int] = np.unique(np.concatenate([dependent, twice, [len(ends) - 2]])).tolist()
    return slow


def _expand(table: Sentences, ids: Small, lengths: Ints, starts: Ints) -> Ints:
    """Replace pieces by the first ``lengths`` of their tokens, which then stand from ``starts`` on."""
    first = np.append(table.words, 0)[table.offsets[:-1]]
    words = np.repeat(first[ids], lengths)
    # nearly all pieces are one token: only the others have more to fill in
    longer = np.flatnonzero(lengths > 1)
    for number in range(1, int(lengths.max(initial=0))):
        longer = longer[lengths[longer] > number]
        words[starts[longer] + number] = table.words[table.offsets[ids[longer]] + number]
    return words


def _fill(fast: Sentences, slow: list[int], tokens: Sequence[Sequence[str]], vocabulary: dict[str, int]) -> Sentences:
    """Fill the slow lines, which are still empty."""
    numbers = [vocabulary.setdefault(token, len(vocabulary)) for token in chain.from_iterable(tokens)]
    counts = [len(part) for part in tokens]
    lengths = fast.lengths
    lengths[slow] = counts
    words = np.insert(fast.words, np.repeat(fast.offsets[slow], counts), numbers)
    return Sentences(words, offsets_of(lengths))


def _with_context(lines: Sequence[str], line: int) -> str:
    """Return a line with the next line that is not blank, and the break after that one."""
    stop = line + 1
    while stop < len(lines) and (not lines[stop] or lines[stop].isspace()):
        stop += 1
    return "\n".join(lines[line : stop + 1]) + ("\n" if stop + 1 < len(lines) else "")
