"""All code that relies on private parts of Beam, of Google's clients and of uvicorn: a module for each such part.

Each module's docstring names what it relies on, and where the library's source defines it. A test fails if a library is
installed in another release than :data:`READ_IN` has. To move to a new release, compare in both releases what the
docstrings name, adapt the modules, and then change the release here.
"""

from typing import NamedTuple


class ReadIn(NamedTuple):
    """The release of a distribution that a module was written for."""

    module: str
    """A module of this package."""
    distribution: str
    release: str


_BEAM = "apache-beam", "2.77.0"
_BIGTABLE = "google-cloud-bigtable", "2.50.2"

READ_IN = (
    ReadIn("beam_flags", *_BEAM),
    ReadIn("bigtable_writer", *_BEAM),
    ReadIn("bigtable_writer", *_BIGTABLE),
    ReadIn("dataflow_client", *_BEAM),
    ReadIn("direct_runner", *_BEAM),
    ReadIn("http_connections", "uvicorn", "0.54.0"),
    ReadIn("job_failures", *_BEAM),
    ReadIn("cheap_bundles", *_BEAM),
    ReadIn("local_runner", *_BEAM),
    ReadIn("no_runner", *_BEAM),
    ReadIn("repeated_work", *_BEAM),
    ReadIn("worker_state", *_BEAM),
    ReadIn("worker_state", "objsize", "0.7.1"),
)
