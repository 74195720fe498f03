"""Limits what a firing of a group commits: its runner refuses a larger commit, and repeats the firing for ever.

A firing commits the state that it writes back, the results that it publishes, and what its panes contribute to
roll-ups. Aggregate rows are in the table before, and no part of the commit.

- **Panes**: once their rows and contributions have :attr:`CommitLimits.panes_bytes`, the other panes stay due, and
  fire a second later.
- **State**: a firing that reads more than :attr:`CommitLimits.state_bytes` of windows and waiting readings closes the
  oldest windows, whatever the watermark. All of their readings are in the table, so late panes compute them from there.
  That is what an outage needs: the watermark lags until all is read that the job has missed.

Windows that would be open even if the watermark were the clock stay open. Nothing limits them here: the launch checks
them for the declared rate; see :mod:`pipeline.core.panes.group_sizes`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

MAX_COMMIT_BYTES = 180_000_000
"""What Dataflow commits for a work item, here the firing of a group; it refuses more, again and again."""


@dataclass(frozen=True)
class CommitLimits:
    """The limits of what a firing commits.

    Args:
        bytes: the most that the runner commits.
    """

    bytes: int = MAX_COMMIT_BYTES

    @property
    def state_bytes(self) -> int:
        """The most that the state of open windows and waiting readings should take."""
        return self.bytes // 4 * 3

    @property
    def panes_bytes(self) -> int:
        """The bytes of rows and contributions after which no more panes fire.

        A result is smaller than the row of its pane. So results and contributions take a tenth of the commit each at
        most. The rest is for the panes that reach the limit, for marks and for the work list.
        """
        return self.bytes // 10

    def closing(self, sizes: Mapping[int, int], others_bytes: int) -> list[int]:
        """Returns the starts of the windows that have to close, in order.

        Args:
            sizes: the bytes of windows that may close, and of their waiting readings, by start in µs.
            others_bytes: the bytes of all others.
        """
        closing, size = list[int](), sum(sizes.values()) + others_bytes
        for start_us in sorted(sizes):
            if size <= self.state_bytes:
                break
            closing.append(start_us)
            size -= sizes[start_us]
        return closing
