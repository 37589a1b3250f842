"""Pairs of image and caption vectors in, one linear map out."""

from __future__ import annotations

from recap.alignment.mapping import GRADIENT_METHODS, METHODS, LinearAlignment, search_beta
from recap.alignment.statistics import PairStatistics

__all__ = ["GRADIENT_METHODS", "METHODS", "LinearAlignment", "PairStatistics", "search_beta"]
