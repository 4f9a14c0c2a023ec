"""The files of a checkout: presets, runs, results and whether they are stale, what is pulled."""
