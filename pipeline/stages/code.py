"""Stage ``code``: the code here -> what it means for each stage and component."""

from pipeline.runtime import code
from rrcm.core.ending import reported

if __name__ == "__main__":
    with reported(stage=True):
        code.write()
