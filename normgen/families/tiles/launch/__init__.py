"""Tiles: schedules of a call, what they cost, and their launches."""
