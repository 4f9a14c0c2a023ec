"""Certificates turn vote counts into a class and a certified radius; one file per theorem."""
