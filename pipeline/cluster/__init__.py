"""Ray itself: start and stop, how a run lies on the nodes, sizes."""
