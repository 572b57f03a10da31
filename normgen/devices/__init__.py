"""What runs kernels: the host, and CUDA devices."""
