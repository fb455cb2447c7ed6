"""What is made of finished runs: comparison, curves, plots, predictions."""
