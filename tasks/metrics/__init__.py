"""Scores of decisions, rankings and single-label classification."""
