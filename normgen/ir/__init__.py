"""The mathematics of a spec: expressions, programs, their derivatives and their meaning."""
