"""Columns: plans, and the text of a plan."""
