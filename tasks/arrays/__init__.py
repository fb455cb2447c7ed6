"""Labels, rows and masks as Arrow and NumPy arrays."""
