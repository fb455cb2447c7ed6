"""How often class names occur together in a text corpus."""
