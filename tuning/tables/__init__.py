"""A paper's table: what was published, what is run, and the page that shows both."""
