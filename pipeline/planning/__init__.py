"""What a params.yaml would cost: counted operations, stated and measured rates, memory, disk."""
