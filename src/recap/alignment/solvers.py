"""From second moments to the map W, in closed form.

The convention throughout is ``e ~ W f``: F holds one image a row, E its captions, ``gram`` is F'F (d_image x d_image),
``cross`` is E'F (d_text x d_image), both usually centred. W has the shape of ``cross``. Nothing here sees a raw row.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from recap.errors import InputError

Matrix: TypeAlias = npt.NDArray[np.float64]

WHITENING = 0.15
"""How much ``whitened`` evens out: 0 is Procrustes. Chosen on Flickr8k dev; 0.1 to 0.3 are nearly as good."""

WEAKEST = 1e-3
"""A direction that is weaker than this share of the strongest is not lifted any further."""


def procrustes(cross: Matrix) -> Matrix:
    """Return the orthogonal W that minimises ||E - F W'||: with E'F = U S V' it is W = U V'.

    With unequal dimensions W has orthonormal rows or columns, whichever are fewer. (Writing V U' instead belongs to the
    decomposition of F'E.)
    """
    u, _, vt = np.linalg.svd(cross, full_matrices=False)
    return np.asarray(u @ vt)


def ols(gram: Matrix, cross: Matrix, *, rcond: float | None = None) -> Matrix:
    """Return the least-squares W = E'F (F'F)^+, of minimal norm where fewer pairs than dimensions leave a choice.

    Directions whose eigenvalue is at most ``rcond`` times the largest count as absent.
    """
    return _regress(gram, cross, 0.0, rcond)


def ridge(gram: Matrix, cross: Matrix, strength: float, *, rcond: float | None = None) -> Matrix:
    """Return W = E'F (F'F + strength * tr(F'F) / d * I)^-1; the strength does not depend on the number of pairs."""
    if not 0 <= strength < np.inf:
        raise InputError(f"ridge: the strength must be finite and not negative, got {strength}")
    return _regress(gram, cross, strength * float(np.trace(gram)) / len(gram), rcond)


def beta_procrustes(cross: Matrix, beta: float) -> Matrix:
    """Return W - beta (W - I) with the orthogonal W: 0 is Procrustes, 1 the identity. Both sides share one space."""
    if not 0 <= beta <= 1:
        raise InputError(f"beta-procrustes: beta must lie between 0 and 1, got {beta}")
    eye = identity(cross)
    w = procrustes(cross)
    return w - beta * (w - eye)


def whitened(cross: Matrix) -> Matrix:
    """Return W = U S^-p V' for E'F = U S V', between Procrustes (p = 0) and a map that makes all directions alike.

    What all captions of a domain share is strong in E'F, and pulls every image towards the same few captions. Lifting
    the weaker directions finds more special ones; where no pair shows a direction, W is 0.
    """
    u, s, vt = np.linalg.svd(cross, full_matrices=False)
    shown = s > len(s) * np.finfo(np.float64).eps * s[0]
    lifted = np.where(shown, np.maximum(s / s[0], WEAKEST) ** -WHITENING, 0.0)
    return np.asarray((u * lifted) @ vt)


def identity(cross: Matrix) -> Matrix:
    """Return W = I: images are compared with captions as the encoders made them."""
    d_text, d_image = cross.shape
    if d_text != d_image:
        raise InputError(
            f"identity and beta-procrustes need image and text vectors of one shared space, but their dimensions are "
            f"{d_image} and {d_text}; use procrustes, ols or ridge"
        )
    return np.eye(d_image)


def _regress(gram: Matrix, cross: Matrix, added: float, rcond: float | None) -> Matrix:
    """Return cross (gram + added I)^+ by way of gram = V diag(s) V'."""
    values, vectors = np.linalg.eigh(gram)
    cut = (len(gram) * np.finfo(np.float64).eps if rcond is None else rcond) * max(float(values[-1]), 0.0)
    kept = values > cut
    basis = vectors[:, kept]
    return np.asarray((cross @ basis / (values[kept] + added)) @ basis.T)
