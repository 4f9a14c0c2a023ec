"""Tables, figures and text of a report."""
