"""Which rows belong to which client, and what each client identifies."""
