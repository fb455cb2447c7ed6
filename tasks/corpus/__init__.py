"""Co-occurrence counts of class names in a text corpus."""
