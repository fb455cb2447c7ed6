"""Tasks made of a table of the user's own."""
