"""Which vertices a graph convolution mixes, and with what weights: a symmetric matrix, by its rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hotlap.base.errors import ShapeError

MAX_DENSE = 64
"""Graphs of at most so many vertices are also kept as a whole matrix, which a tensor core takes in one piece."""


@dataclass(frozen=True, eq=False)
class Support:
    """A symmetric matrix [V, V]; make one with :func:`support_from_matrix` or :func:`support_from_rows`."""

    columns: Tensor
    """[V, K] int32: where the rows have numbers, those that count first."""
    values: Tensor
    """[V, K] float32: the numbers; 0 fills a row up."""
    dense: Tensor
    """[V, V] float32: the whole matrix of a small graph; empty for others."""

    @property
    def num_vertices(self) -> int:
        return self.columns.shape[0]

    def to(self, device: torch.device) -> Support:
        """The same on a device."""
        return Support(self.columns.to(device), self.values.to(device), self.dense.to(device))


def support_from_rows(columns: Tensor, values: Tensor) -> Support:  # [V, K] whole numbers, [V, K]
    """The matrix with these numbers in these columns; numbers in the same place are added."""
    count = len(columns)
    keys = (torch.arange(count)[:, None] * count + columns).flatten()
    places, which = torch.unique(keys, return_inverse=True)
    number = torch.zeros(len(places), dtype=torch.float64).index_add_(0, which, values.double().flatten())
    places, number = places[number != 0], number[number != 0]
    row, column = places // max(1, count), places % max(1, count)
    swapped = torch.argsort(column * count + row)
    if not (torch.equal(row[swapped], column) and torch.allclose(number[swapped], number, rtol=1e-5)):
        raise ShapeError("the support is not symmetric", expected="the same number in (a, b) and in (b, a)")
    lengths = torch.bincount(row, minlength=count)
    most = max(1, int(lengths.max()) if count else 1)
    slot = torch.arange(len(row)) - (lengths.cumsum(0) - lengths)[row]
    table = torch.arange(count, dtype=torch.int32)[:, None].repeat(1, most)
    weights = torch.zeros(count, most)
    table[row, slot], weights[row, slot] = column.int(), number.float()
    dense = torch.zeros(count, count) if count <= MAX_DENSE else torch.empty(0, 0)
    if dense.numel():
        dense[row, column] = number.float()
    return Support(table, weights, dense)


def support_from_matrix(matrix: Tensor) -> Support:  # [V, V]
    """The support that this symmetric matrix is."""
    columns = torch.arange(len(matrix)).expand(len(matrix), -1)
    return support_from_rows(columns, matrix)
