"""Infrastructure: errors, files, locks, finding components by name, checking values."""
