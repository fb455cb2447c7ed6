"""Tasks whose samples are images."""
