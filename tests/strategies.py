"""Hypothesis strategies that several rooms share."""

from hypothesis import strategies as st

WORDS = ["a", "a", "dog", "cat", "runs", "the", "22 3/4", "x", "!", "man's"]
SENTENCE = st.lists(st.sampled_from(WORDS), max_size=9).map(" ".join)


@st.composite
def corpora(draw: st.DrawFn, least: int = 2) -> tuple[list[str], list[list[str]]]:
    """Candidates and references of a few images, from few words, so that n-grams repeat."""
    references = draw(st.lists(st.lists(SENTENCE, min_size=1, max_size=4), min_size=least, max_size=6))
    return draw(st.lists(SENTENCE, min_size=len(references), max_size=len(references))), references
