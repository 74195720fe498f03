"""``python -m pipeline [flags]``: what a laptop, Dataflow and the Flex Template launcher run."""

import sys

if __name__ == "__main__":
    try:
        from pipeline.job.launch import main
    except ModuleNotFoundError as error:
        from pipeline.cli.extras import exit_naming_extra

        exit_naming_extra(error)
    sys.exit(main())
