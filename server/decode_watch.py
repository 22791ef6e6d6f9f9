"""Looks for decodes that take too long and cannot be stopped, as they run in threads: JPEGs."""

import asyncio
import logging
from collections.abc import Callable

from pipeline.overruns import Overruns

log = logging.getLogger(__name__)

_LOOK_S = 0.5


async def watch_decodes(overruns: Overruns, on_lost: Callable[[], None]) -> None:
    """Have the callers answered, and `on_lost` called: a thread and a slot are lost until this process ends."""
    while True:
        await asyncio.sleep(_LOOK_S)
        lost = overruns.give_up()
        if lost:
            log.error("%d JPEG decode(s) took too long (--decode-timeout-s), and hold a thread and a slot each", lost)
            on_lost()
