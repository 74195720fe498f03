"""``python -m pipeline [flags]``: what a laptop, Dataflow and the Flex Template launcher run."""

import sys


def main() -> None:
    """Runs the job, or submits it, and exits."""
    try:
        from pipeline.cli.entry import Importing, run

        def job() -> int:
            try:
                with Importing():
                    from pipeline.job.launch import main
            except ModuleNotFoundError as error:
                from pipeline.cli.extras import exit_naming_extra

                exit_naming_extra(error)
            return main()

        run(job)
    except KeyboardInterrupt:  # in the first milliseconds
        sys.exit(130)


if __name__ == "__main__":
    main()
