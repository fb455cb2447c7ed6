"""Results of finished runs: comparison, curves, plots, predictions."""
