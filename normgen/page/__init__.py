"""One page per kernel: what the CUDA compiler is given for a call, and nothing that it would throw away."""
