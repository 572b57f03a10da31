"""Rows of contiguous elements: reductions over them, sums over the rows, elementwise values."""
