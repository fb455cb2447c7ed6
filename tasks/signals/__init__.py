"""Tasks of signals."""
