"""Code that stages share: the DVC graph, several devices, progress, throughput."""
