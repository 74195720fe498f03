"""What Tidetable uses of the private parts of Beam and Google's clients: a module for each such part.

Each module's docstring says what it relies on and where that is in the source of the library. A test fails when the
installed release of the library is another than the one in :data:`READ_IN`. To move to a new release, compare what the
docstrings name in both releases, change the modules where it differs, and then change the release here.
"""

from typing import NamedTuple


class ReadIn(NamedTuple):
    """The release of a distribution whose source a module was written against."""

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
    ReadIn("job_failures", *_BEAM),
    ReadIn("local_runner", *_BEAM),
    ReadIn("service_calls", *_BEAM),
)
