"""`normgen explain --html`: what is known of a norm, as one page."""
