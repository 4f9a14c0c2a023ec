"""DVC and Prefect around the library: stages of the graph, and the commands of a checkout."""
