"""Records of a run: JSON lines, and MLflow."""
