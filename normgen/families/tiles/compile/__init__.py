"""Tiles: plans, and the text of a plan."""
