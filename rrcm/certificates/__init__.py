"""Certificates: votes in, a class and a radius out. One file per theorem."""
