"""Signals ask once, and the handlers of before come back."""

import signal
import threading
import time

import pytest

from glassformer.training.signals import stop_on_signals


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_a_request(which: signal.Signals) -> None:
    before = signal.getsignal(which)
    with stop_on_signals() as request:
        assert request.code == 0
        signal.raise_signal(which)
        assert request.signal == which and request.code == 1 + which
        assert signal.getsignal(which) == before, "a second signal must leave at once"
    assert signal.getsignal(which) == before


def test_a_second_ctrl_c_leaves_at_once() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs begin without it
    try:
        with pytest.raises(KeyboardInterrupt), stop_on_signals():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_handlers_come_back_after_an_error() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ZeroDivisionError), stop_on_signals():
        raise ZeroDivisionError
    assert signal.getsignal(signal.SIGTERM) == before


def test_outside_of_the_main_thread_signals_are_left_alone() -> None:
    found = []

    def work() -> None:
        with stop_on_signals() as request:
            found.append((request.code, signal.getsignal(signal.SIGINT)))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [(0, before)]


def test_the_end_of_the_time_is_a_request() -> None:
    with stop_on_signals(time.monotonic() + 0.05) as request:
        assert request.code == 0
        time.sleep(0.06)
        assert request.code == 1
