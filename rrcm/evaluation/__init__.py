"""Quality of encoders and generated images: linear probes and Fréchet distances."""
