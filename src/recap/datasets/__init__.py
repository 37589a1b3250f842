"""Pairs of pictures and captions from the files people have."""

from recap.datasets.flickr8k import read_flickr8k
from recap.datasets.images import IMAGE_SUFFIXES, find_images
from recap.datasets.pairs import printable, read_pairs

__all__ = ["IMAGE_SUFFIXES", "find_images", "printable", "read_flickr8k", "read_pairs"]
