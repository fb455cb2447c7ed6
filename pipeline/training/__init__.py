"""One client, the server, evaluation: plain torch, no Ray."""
