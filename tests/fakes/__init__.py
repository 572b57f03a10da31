"""Stand-ins for what a machine without a GPU lacks: a driver, CUDA's library, arrays of other libraries."""
