"""SIGINT and SIGTERM, noticed between two chunks."""

import signal
import threading
from types import FrameType


class Interrupted(Exception):
    """The run was saved and left because of a signal; `code` is what the process exits with (130 or 143)."""

    def __init__(self, number: int, message: str):
        super().__init__(message)
        self.code = 128 + number


class Signals:
    """A context that remembers the first SIGINT or SIGTERM in `received` instead of ending the process.

    Within another one it begins with what that has received. A second SIGINT interrupts at once. Outside the main
    thread, where Python has no signals, nothing is remembered.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, object] = {}

    def __enter__(self) -> "Signals":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                before = self._before[number] = signal.signal(number, self._remember)
                outer = getattr(before, "__self__", None)
                if isinstance(outer, Signals):
                    self.received = self.received or outer.received
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _remember(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.received = number
