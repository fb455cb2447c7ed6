"""Options of a run, presets, overrides, the digest."""
