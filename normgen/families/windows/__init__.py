"""Sums over neighbours, also of values that contain such sums."""
