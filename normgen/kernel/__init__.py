"""What the texts of all kernels share: expressions, statements, names, operands."""
