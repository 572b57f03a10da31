"""Kernels on the CPU: compiled behind a shim, and run with every access checked."""
