"""The search for hyper-parameters: spaces, searchers, the study and its trials on Ray Tune."""
