"""Kernels on a GPU: compiled by nvcc, launched through PyCUDA or cuda-bindings."""
