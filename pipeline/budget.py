"""A number of bytes that several threads may have between them at a time."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Budget:
    """Whoever needs more than there is left waits, and others behind it; who needs more than all of it goes alone."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._taken = 0
        self._turn = threading.Lock()
        self._changed = threading.Condition()

    @contextmanager
    def taken(self, size: int) -> Iterator[None]:
        """Have `size` bytes meanwhile."""
        # One at a time waits for bytes, or small ones would always slip past a large one.
        with self._turn, self._changed:
            self._changed.wait_for(lambda: not self._taken or self._taken + size <= self._size)
            self._taken += size
        try:
            yield
        finally:
            with self._changed:
                self._taken -= size
                self._changed.notify()
