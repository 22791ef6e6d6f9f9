"""A process in a frontend's place: all that a frontend does with an image, fed from memory instead of by gRPC."""

import json
import os
import select
import signal
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.closed_loop import ClosedLoop
from bench.mix import mix_images
from pipeline.remote import RemotePipeline
from pipeline.shared import StatusPage
from pipeline.wire import received
from server import child
from server.link import Reporter, news_socket
from server.plan import Listening, News, Plan, Serving, unpack
from server.shares import decode_threads, image_limits

# The variable that holds a `Load` as JSON, for all feeders.
VARIABLE = "WARMLANE_FEED"
# Begins a feeder's last line: the file with its `Fed` as JSON follows.
FED = "fed: "
_WAIT_MS = 5


@dataclass(frozen=True, slots=True)
class Load:
    """What a feeder does.

    Attributes:
        mix: see `bench.mix`.
        in_flight: images of each feeder under way at all times.
        folder: where each leaves its `Fed`.
    """

    folder: str
    mix: str
    in_flight: int
    warm_up_s: float
    seconds: float


class Feeder:
    """Follows the supervisor's news and feeds, on one thread: a frontend's event loop is one."""

    def __init__(self, plan: Plan) -> None:
        settings = plan.settings
        self.is_serving = False
        self._index = plan.place.index
        self._replies = socket.socket(fileno=plan.replies[0])
        self._page = StatusPage(plan.page, settings.frontends, plan.engines)
        self._news = news_socket(plan)
        self.pipeline = RemotePipeline(
            plan.blocks[0],
            self._page,
            plan.sender,
            self._replies,
            [socket.socket(fileno=fd) for fd in plan.descriptors],
            limits=image_limits(settings),
            decode_threads=decode_threads(settings),
            skip_decode=settings.skip_decode,
        )
        self._poll = select.poll()
        self._poll.register(self._replies, select.POLLIN)

    def turn(self) -> None:
        """Wait a moment for replies and take them in, and the news."""
        self._poll.poll(_WAIT_MS)
        self._page.frontend_heartbeat[self._index] = time.monotonic()
        self.pipeline.take_replies()
        for message in received(self._news):
            news: News = unpack(message)
            if news.info is not None and news.layout is not None:
                self.pipeline.learn(news.info, news.layout)
                self.pipeline.use(news.engines)
            self.is_serving = news.is_serving


def run(plan: Plan) -> int:
    """Feed as the variable says, leave a `Fed` in a file, say so in a line, and wait to be ended."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    load = Load(**json.loads(os.environ[VARIABLE]))
    feeder, reporter = Feeder(plan), Reporter(plan)
    files = mix_images(load.mix)
    reporter.tell(Listening())
    while not feeder.is_serving:
        feeder.turn()
    reporter.tell(Serving())
    loop = ClosedLoop(feeder.pipeline, files)
    fed = loop.run(load.in_flight, load.warm_up_s, load.seconds, feeder.turn, load.warm_up_s)
    # Short enough for one write: feeders share the pipe, and a longer line would be mixed with another's.
    found = Path(load.folder) / f"{plan.place}.json"
    found.write_text(json.dumps(asdict(fed)))
    print(f"{FED}{found}", flush=True)
    while True:
        feeder.turn()


if __name__ == "__main__":
    child.end(child.main(run))
