"""Arrays of every library: looked at without a copy, and made."""
