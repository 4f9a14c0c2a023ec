"""From certificates to numbers, tables, figures and a page."""
