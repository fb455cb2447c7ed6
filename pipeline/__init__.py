"""HOW a run runs: the algorithm's contract, methods, options, training, execution, records, the command line."""
