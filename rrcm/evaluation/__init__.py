"""Quality of encoders: linear probes and Fréchet distances."""
