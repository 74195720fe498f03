"""Roll-ups are settled again at once."""

from tests.support.no_waiting import no_waiting as no_waiting
