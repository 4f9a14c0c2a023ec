"""Certificates to numbers, tables, figures and the HTML report."""
