"""A frontend: gRPC, admission and decode threads. What it has decoded goes to the engines."""

import asyncio
import logging
from typing import Any

import uvloop
import zmq

from pipeline.remote import RemotePipeline
from pipeline.shared import StatusPage
from pipeline.wire import listener, received, replies_address
from server.front import Front
from server.link import Reporter, news_socket
from server.plan import Listening, News, Plan, Refused, unpack
from server.shares import decode_threads, image_limits
from server.startup import StartError, stop_on_signals

log = logging.getLogger(__name__)


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
    replies = listener(zmq.PULL, replies_address(plan.base, plan.sender))
    pipeline = RemotePipeline(
        plan.blocks[0],
        StatusPage(plan.page, settings.frontends, plan.engines),
        plan.base,
        plan.sender,
        replies,
        limits=image_limits(settings),
        decode_threads=decode_threads(settings),
        skip_decode=settings.skip_decode,
    )
    front.answer_with(pipeline)
    await front.server.start()
    _read(replies, pipeline, front, plan)
    reporter.tell(Listening())
    await stopping
    await front.drain()
    await asyncio.to_thread(pipeline.stop)


def _read(replies: "zmq.Socket[Any]", pipeline: RemotePipeline, front: Front, plan: Plan) -> None:
    """Follow the news, and the engines' replies, from the event loop."""
    news = news_socket(plan)

    def on_news() -> None:
        for message in received(news):
            _learn(unpack(message), pipeline, front)

    loop = asyncio.get_running_loop()
    loop.add_reader(replies.FD, pipeline.take_replies)
    loop.add_reader(news.FD, on_news)
    on_news()


def _learn(news: News, pipeline: RemotePipeline, front: Front) -> None:
    if news.info is not None and news.layout is not None:
        pipeline.learn(news.info, news.layout)
        pipeline.use(news.engines)
    front.set_serving(news.is_serving)
