"""From arrays to results."""
