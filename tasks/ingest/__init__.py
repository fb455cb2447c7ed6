"""Raw files to prepared data: a Parquet file per client, with Ray Data or on this machine."""
