"""Norms of PyTorch whose axes are spread over the processes of a group."""
