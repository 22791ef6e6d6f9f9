"""What a supervisor makes for its children to share: it outlives them, and is theirs by descriptor alone."""

import logging
import os

import psutil

from pipeline.pipes import make_pipe
from pipeline.shared import Layout, StatusPage, anonymous_file
from server.startup import StartError

log = logging.getLogger(__name__)


class SharedMemory:
    """A block of slots for each frontend, and one page for all.

    Args:
        slots: of each frontend.

    Attributes:
        blocks: descriptors, one for each frontend; empty files until `divide`.
        descriptors: pipes, one that leads to each engine.
        replies: pipes, one that leads to each frontend.
        page_fd: descriptor of the page.
        layout: of the blocks; None until `divide`.
    """

    def __init__(self, frontends: int, engines: int, slots: int) -> None:
        self.blocks = tuple(anonymous_file(f"frontend-{index}") for index in range(frontends))
        self.descriptors = tuple(make_pipe() for _ in range(engines))
        self.replies = tuple(make_pipe() for _ in range(frontends))
        self.page_fd = anonymous_file("status")
        self.page = StatusPage(self.page_fd, frontends, engines)
        self.layout: Layout | None = None
        self._slots = slots

    def close(self) -> None:
        """Let go of it; the memory is free once the children have ended."""
        for pipe in (*self.descriptors, *self.replies):
            pipe.close()
        for fd in (*self.blocks, self.page_fd):
            os.close(fd)

    def divide(self, canvas: int) -> Layout:
        """The layout for canvases of this side, in pixels; the first call takes the memory.

        Raises:
            StartError: there is not so much, or canvases of another side have been asked for before.
        """
        if self.layout is None:
            layout = Layout(self._slots, canvas)
            self._allocate(layout)
            self.layout = layout
        elif canvas != self.layout.canvas:
            canvases = f"{canvas} and {self.layout.canvas} pixels"
            raise StartError(f"--devices of one kind only: this and others want canvases of {canvases}")
        return self.layout

    def _allocate(self, layout: Layout) -> None:
        wanted, available = len(self.blocks) * layout.size, psutil.virtual_memory().available
        try:
            # Asked before: the kernel would rather kill a process than say no.
            if wanted > available:
                raise OSError(f"{available >> 20} MiB are free")
            for fd in self.blocks:
                layout.allocate(fd)
        except OSError as error:
            what = f"{wanted >> 20} MiB of slots (--slots, --frontends, --canvas)"
            raise StartError(f"no memory for {what}: {error}") from None
        log.info(
            "%d frontends with %d slots of %d bytes (%d pixels square) each",
            len(self.blocks),
            layout.slots,
            layout.slot_bytes,
            layout.canvas,
        )
