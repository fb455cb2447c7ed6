"""Models: networks and class-name vectors, plain torch, no task and no client in sight."""
