"""A frontend: gRPC, admission and decode threads. What it has decoded goes to the engines."""

import asyncio
import logging
import socket
import time
from typing import Any

import uvloop
import zmq

from pipeline.garbage import spare_what_exists
from pipeline.remote import RemotePipeline
from pipeline.shared import StatusPage
from pipeline.wire import received
from server.decode_watch import watch_decodes
from server.front import Front
from server.link import Reporter, news_socket
from server.plan import Listening, News, Plan, Refused, Serving, unpack
from server.shares import decode_threads, image_limits
from server.startup import StartError, stop_on_signals

log = logging.getLogger(__name__)

_BEAT_S = 0.5


def run(plan: Plan) -> int:
    """Serve until the supervisor says otherwise; the exit status of the process."""
    reporter = Reporter(plan)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(plan, reporter))
    except StartError as error:
        reporter.tell(Refused(str(error)))
        reporter.close()
        return 2
    return 0


async def _serve(plan: Plan, reporter: Reporter) -> None:
    stopping = stop_on_signals(once=True)
    settings = plan.settings
    front = Front(settings, shares_port=True)
    front.listen(plan.port)
    if plan.own_port:
        front.listen(plan.own_port)
    replies = socket.socket(fileno=plan.replies[0])
    page = StatusPage(plan.page, settings.frontends, plan.engines)
    beat = asyncio.create_task(_beat(page, plan.place.index))
    pipeline = RemotePipeline(
        plan.blocks[0],
        page,
        plan.sender,
        replies,
        [socket.socket(fileno=fd) for fd in plan.descriptors],
        limits=image_limits(settings),
        decode_threads=decode_threads(settings),
        skip_decode=settings.skip_decode,
    )
    front.answer_with(pipeline)
    asyncio.get_running_loop().add_reader(replies, pipeline.take_replies)
    follower = _Follower(pipeline, front, news_socket(plan))
    # One that takes a dead one's place knows the engines before it takes a call.
    await asyncio.wait({follower.has_heard, stopping}, return_when=asyncio.FIRST_COMPLETED)
    await front.server.start()
    reporter.tell(Listening())
    await asyncio.wait({follower.is_serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    if follower.is_serving.done():
        spare_what_exists()
        reporter.tell(Serving())
    lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    watch = asyncio.create_task(watch_decodes(pipeline.decoders.overruns, lambda: _resolve(lost)))
    await asyncio.wait({stopping, lost}, return_when=asyncio.FIRST_COMPLETED)
    if lost.done():
        log.error("this frontend drains, for another to take its place")
    await front.drain()
    await asyncio.to_thread(pipeline.stop)
    watch.cancel()
    beat.cancel()


async def _beat(page: StatusPage, index: int) -> None:
    """Show that the event loop turns: the supervisor replaces a frontend whose loop does not."""
    while True:
        page.frontend_heartbeat[index] = time.monotonic()
        await asyncio.sleep(_BEAT_S)


class _Follower:
    """Follows the supervisor's news, on the event loop.

    Attributes:
        has_heard: resolves with the first news.
        is_serving: resolves once calls are answered.
    """

    def __init__(self, pipeline: RemotePipeline, front: Front, news: "zmq.Socket[Any]") -> None:
        loop = asyncio.get_running_loop()
        self.has_heard: asyncio.Future[None] = loop.create_future()
        self.is_serving: asyncio.Future[None] = loop.create_future()
        self._pipeline = pipeline
        self._front = front
        self._news = news
        loop.add_reader(news.FD, self._on_news)
        self._on_news()

    def _on_news(self) -> None:
        for message in received(self._news):
            self._learn(unpack(message))

    def _learn(self, news: News) -> None:
        if news.info is not None and news.layout is not None:
            self._pipeline.learn(news.info, news.layout)
            self._pipeline.use(news.engines)
        self._front.set_serving(news.is_serving)
        _resolve(self.has_heard)
        if news.is_serving:
            _resolve(self.is_serving)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
