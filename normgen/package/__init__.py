"""What compiler and caller share: plain frozen records of passes, kernels and operands, and their schema."""
