"""A cluster.yaml checked before it costs money, and commands sent to a running cluster."""
