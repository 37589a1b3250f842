"""Pairs of pictures and captions from the files people have."""

from recap.datasets.captions import Sentence, read_sentences
from recap.datasets.images import IMAGE_SUFFIXES, find_images
from recap.datasets.pairs import PairFiles, read_pairs, stream_pairs
from recap.datasets.published import read_flickr8k
from recap.datasets.records import printable

__all__ = [
    "IMAGE_SUFFIXES",
    "PairFiles",
    "Sentence",
    "find_images",
    "printable",
    "read_flickr8k",
    "read_pairs",
    "read_sentences",
    "stream_pairs",
]
