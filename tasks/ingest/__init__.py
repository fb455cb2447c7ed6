"""Raw files to prepared data: with Ray Data or on this machine."""
