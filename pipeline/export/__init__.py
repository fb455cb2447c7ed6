"""An experiment as an app of another framework."""
