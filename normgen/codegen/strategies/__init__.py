"""The ways to cut a program into kernels."""
