"""Tasks whose samples are texts."""
