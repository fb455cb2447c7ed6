"""Errors of the models. Nothing slow is imported, so that the command line can name them."""

from __future__ import annotations


class NamesError(ValueError):
    """Bad table or class names by the user: one line that says what is wrong, where, and how to mend it."""


class NetworkError(ValueError):
    """A network that cannot be made for an input: one line that says why."""
