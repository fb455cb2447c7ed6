"""Tasks of sparse features."""
