"""The rows of every client, and the classes that it identifies."""
