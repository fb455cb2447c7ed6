"""WHICH numbers: presets, search spaces, sweeps and the tables of the papers."""
