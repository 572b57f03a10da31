"""Norms whose axes are spread over ranks: each calls with its shards, and they exchange a few numbers."""
