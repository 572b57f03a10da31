"""Elementwise values whose tensors lie in two memory orders."""
