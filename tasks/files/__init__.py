"""Raw files: found, opened, unpacked, checked; object stores."""
