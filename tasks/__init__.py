"""Tasks: data sets, their preparation and partitions, metrics. The tasks by name: ``anchorfl.tasks.registry``."""
