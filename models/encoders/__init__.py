"""Encoders: from inputs to one representation per row."""
