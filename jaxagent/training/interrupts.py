"""Ctrl-C and SIGTERM: finish the update, save, leave. A second signal leaves at once."""

import signal
from types import FrameType, TracebackType


class Interrupts:
    """Remembers a signal while it is entered; the loop asks `received` after each update."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, object] = {}

    def __enter__(self) -> "Interrupts":
        for number in self.SIGNALS:
            try:
                self._before[number] = signal.signal(number, self._on_signal)
            except ValueError:  # not in the main thread (a notebook server): signals stay as they are
                break
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def exit_status(self) -> int:
        """128 plus the signal's number, as shells have it."""
        return 128 + (self.received or 0)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = number
