import pytest
from apache_beam.coders import VarIntCoder
from apache_beam.coders.coders import GlobalWindowCoder, _TimerCoder
from apache_beam.runners.worker.bundle_processor import OutputTimer
from apache_beam.runners.worker.data_plane import ClosableOutputStream
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import Timestamp
from apache_beam.utils.windowed_value import PANE_INFO_UNKNOWN

from pipeline.private_apis.timer_holds import OF_WORKERS, check, set_clock_timer


@pytest.mark.parametrize(("in_worker", "hold"), [(True, 90), (False, 5)])
def test_a_timer_of_the_clock_holds_the_time_at_which_it_fires(monkeypatch, in_worker, hold):
    """In a worker, the hold is the firing time; for a runner in this process, the timestamp of the element."""
    monkeypatch.delenv(OF_WORKERS, raising=False)
    if in_worker:
        monkeypatch.setenv(OF_WORKERS, "url: 'localhost:1'")
    coder, stream = _TimerCoder(VarIntCoder(), GlobalWindowCoder()).get_impl(), ClosableOutputStream()
    timer = OutputTimer(
        1, GlobalWindow(), Timestamp(5), PANE_INFO_UNKNOWN, TimeDomain.REAL_TIME, "clock", coder, stream
    )
    set_clock_timer(timer, Timestamp(90))
    (sent,) = coder.decode_all(stream.get())
    assert (sent.fire_timestamp, sent.hold_timestamp) == (Timestamp(90), Timestamp(hold))


def test_a_release_that_holds_the_watermark(monkeypatch):
    """A worker whose release of Beam ignores what we set fails at once, instead of delaying every pane."""
    check()
    set_timer = OutputTimer.set

    def set_with_hold(timer, at):
        timer._input_timestamp = Timestamp(0)
        set_timer(timer, at)

    monkeypatch.setattr(OutputTimer, "set", set_with_hold)
    monkeypatch.delenv(OF_WORKERS, raising=False)
    check()  # no worker
    monkeypatch.setenv(OF_WORKERS, "url: 'localhost:1'")
    with pytest.raises(RuntimeError, match=r"requirements\.txt"):
        check()
