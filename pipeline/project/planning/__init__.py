"""What a params.yaml would cost: counted operations, published or measured speeds, disk."""
