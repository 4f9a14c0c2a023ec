"""Whether a table of certificates can be trusted, from the table alone."""
