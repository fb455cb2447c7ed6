"""Tiny synthetic tasks, built in memory, for tests and first steps."""
