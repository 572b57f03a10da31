"""The check of a spec: draws, error bounds, comparison, and the run that puts them together."""
