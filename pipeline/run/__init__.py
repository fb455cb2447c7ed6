"""A run from options to results: prepare, the round loop, finish, resume."""
