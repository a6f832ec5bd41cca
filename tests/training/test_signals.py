"""The first signal asks the run to stop, and the former handlers are restored."""

import signal
import threading
import time

import pytest

from glassformer.training.host import stop_on_signals


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_requests_a_stop(which: signal.Signals) -> None:
    before = signal.getsignal(which)
    with stop_on_signals() as request:
        assert request.code == 0
        signal.raise_signal(which)
        assert request.signal == which and request.code == 1 + which
        assert signal.getsignal(which) == before, "a second signal must end the process at once"
    assert signal.getsignal(which) == before


def test_a_second_ctrl_c_ends_at_once() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell start without it
    try:
        with pytest.raises(KeyboardInterrupt), stop_on_signals():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_handlers_are_restored_after_an_error() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ZeroDivisionError), stop_on_signals():
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGTERM) == before


def test_signals_are_unchanged_outside_the_main_thread() -> None:
    found = []

    def work() -> None:
        with stop_on_signals() as request:
            found.append((request.code, signal.getsignal(signal.SIGINT)))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [(0, before)]


@pytest.mark.parametrize(("seconds", "code"), [(600, 0), (0, 1)])
def test_the_end_of_the_time_requests_a_stop(seconds: float, code: int) -> None:
    with stop_on_signals(time.monotonic() + seconds) as request:
        assert request.code == code
