"""Reductions over axes outside of a contiguous one, such as the channels of a pixel."""
