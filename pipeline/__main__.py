"""``python -m pipeline [flags]``: what a laptop, Dataflow and the Flex Template launcher run."""

import sys

from pipeline.job.launch import main

if __name__ == "__main__":
    sys.exit(main())
