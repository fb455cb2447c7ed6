"""Training of one client, the server, evaluation: plain torch, no Ray."""
