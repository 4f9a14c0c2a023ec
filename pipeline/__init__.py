"""DVC and Prefect around the library: stages of the graph, and the commands of a checkout."""

import sys

from rrcm.__main__ import end_imports_quietly

if sys.argv[0] == "-m":  # until Python has found a module of this package that it runs
    end_imports_quietly()
