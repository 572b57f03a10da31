"""What `make docs` does before the builder of the site runs."""
