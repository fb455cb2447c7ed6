"""The presets: one TOML file per federation, one per paper with its rows (docs/presets.md)."""
