"""What stages share: their place in the graph, several devices, progress, throughput."""
