"""Calling a warmlane server, blocking (`Client`) or from asyncio (`AsyncClient`).

    with Client("localhost:50051") as client:
        print(client.classify("cat.jpg").predictions[0].label)

    async with AsyncClient(connections=4) as client:
        async for index, outcome in client.classify_stream(paths):
            ...

An image is the bytes of a file, or a path to one. Every method raises WarmlaneError (`warmlane.errors` draws the tree);
ValueError, TypeError and OSError are about the arguments and come before they are sent.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from typing import Any, Self

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2

from warmlane.base import CHANNEL_OPTIONS, BaseClient, Call, Image, check_images, health_name, read_image
from warmlane.errors import ModelNotFound, WarmlaneError, from_rpc_error
from warmlane.results import Classification, ModelInfo, to_classification, to_model_info, to_outcome
from warmlane.v1 import classifier_pb2 as pb

Outcome = Classification | WarmlaneError


class Client(BaseClient[grpc.Channel]):
    """A blocking client; threads may share one. `BaseClient` describes the arguments."""

    def classify(
        self,
        image: Image,
        top_k: int = 5,
        explain: bool = False,
        *,
        request_id: str | None = None,
        timeout_s: float | None = None,
    ) -> Classification:
        """Classify one image.

        Args:
            image: the bytes of a file, or a path.
            top_k: predictions wanted, 1 to 100.
            explain: also say what decoding did to the file.
            request_id: to find the call in the server's log, up to 128 printable ASCII characters; made up if None.
            timeout_s: seconds for the call, retries included; None means the client's.
        """
        request = self._request(read_image(image), top_k, explain)
        return to_classification(self._send(self._next_stub().Classify, request, self._call(request_id, timeout_s)))

    def classify_batch(
        self,
        images: Iterable[Image],
        top_k: int = 5,
        explain: bool = False,
        *,
        request_id: str | None = None,
        timeout_s: float | None = None,
    ) -> list[Outcome]:
        """Classify several images in one message: an answer or an error for each, in their order."""
        check_images(images)
        request, call = self._batch_request(map(read_image, images), top_k, explain), self._call(request_id, timeout_s)
        response: pb.ClassifyBatchResponse = self._send(self._next_stub().ClassifyBatch, request, call)
        return [to_outcome(result, call.request_id) for result in response.results]

    def classify_stream(
        self,
        images: Iterable[Image],
        top_k: int = 5,
        explain: bool = False,
        *,
        request_id: str | None = None,
        timeout_s: float | None = None,
    ) -> Iterator[tuple[int, Outcome]]:
        """Classify many images: yields each one's number, from 0, and its answer or error, as they become ready.

        `images` is read in another thread, no faster than the server takes them. If it or the reading of a path fails,
        the answers to what was sent are still yielded, then the failure is raised. `timeout_s` is for the whole stream;
        None means no limit.
        """
        check_images(images)
        return self._stream(images, top_k, explain, self._stream_call(request_id, timeout_s))

    def model(self, *, timeout_s: float | None = None) -> ModelInfo:
        """What is served, and its limits."""
        request = pb.GetModelRequest(model=self._model)
        return to_model_info(self._send(self._next_stub().GetModel, request, self._call(None, timeout_s)))

    def health(self, service: str = "", *, timeout_s: float | None = None) -> str:
        """One of "SERVING", "NOT_SERVING", and "SERVICE_UNKNOWN" where the server has no such health name."""
        request = health_pb2.HealthCheckRequest(service=service)
        try:
            return health_name(self._send(self._health_stub.Check, request, self._call(None, timeout_s)))
        except ModelNotFound:
            return "SERVICE_UNKNOWN"

    def close(self) -> None:
        """Close the connections; calls under way fail with Cancelled."""
        for channel in self._channels:
            channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open_channel(self, credentials: grpc.ChannelCredentials | None) -> grpc.Channel:
        if credentials is None:
            return grpc.insecure_channel(self.target, CHANNEL_OPTIONS)
        return grpc.secure_channel(self.target, credentials, CHANNEL_OPTIONS)

    def _send(self, method: Any, request: Message, call: Call) -> Any:
        while True:
            try:
                return method(request, timeout=call.remaining_s(), metadata=call.metadata)
            except grpc.RpcError as failure:
                time.sleep(call.pause_s(failure))

    def _stream(self, images: Iterable[Image], top_k: int, explain: bool, call: Call) -> Iterator[tuple[int, Outcome]]:
        failures: list[Exception] = []

        def requests() -> Iterator[pb.ClassifyStreamRequest]:
            try:
                for index, image in enumerate(images):
                    yield self._stream_request(index, read_image(image), top_k, explain)
            except Exception as failure:
                # gRPC would cancel the call, losing answers, and only log this.
                failures.append(failure)

        stub = self._next_stub()
        responses = stub.ClassifyStream(requests(), timeout=call.remaining_s(), metadata=call.metadata)
        try:
            for response in responses:
                yield response.id, to_outcome(response.result, call.request_id)
        except grpc.RpcError as failure:
            raise from_rpc_error(failure, call.request_id) from failure
        finally:
            responses.cancel()
        if failures:
            raise failures[0]


class AsyncClient(BaseClient[grpc.aio.Channel]):
    """A client for asyncio, to be made inside a running event loop. `BaseClient` describes the arguments."""

    async def classify(
        self,
        image: Image,
        top_k: int = 5,
        explain: bool = False,
        *,
        request_id: str | None = None,
        timeout_s: float | None = None,
    ) -> Classification:
        """As `Client.classify`."""
        request = self._request(await _read_image(image), top_k, explain)
        call = self._call(request_id, timeout_s)
        return to_classification(await self._send(self._next_stub().Classify, request, call))

    async def classify_batch(
        self,
        images: Iterable[Image],
        top_k: int = 5,
        explain: bool = False,
        *,
        request_id: str | None = None,
        timeout_s: float | None = None,
    ) -> list[Outcome]:
        """As `Client.classify_batch`."""
        check_images(images)
        request = self._batch_request([await _read_image(image) for image in images], top_k, explain)
        call = self._call(request_id, timeout_s)
        response: pb.ClassifyBatchResponse = await self._send(self._next_stub().ClassifyBatch, request, call)
        return [to_outcome(result, call.request_id) for result in response.results]

    def classify_stream(
        self,
        images: Iterable[Image] | AsyncIterable[Image],
        top_k: int = 5,
        explain: bool = False,
        *,
        request_id: str | None = None,
        timeout_s: float | None = None,
    ) -> AsyncIterator[tuple[int, Outcome]]:
        """As `Client.classify_stream`; a plain iterable is read in the event loop, so it must not block."""
        check_images(images)
        return self._stream(images, top_k, explain, self._stream_call(request_id, timeout_s))

    async def model(self, *, timeout_s: float | None = None) -> ModelInfo:
        """As `Client.model`."""
        request = pb.GetModelRequest(model=self._model)
        return to_model_info(await self._send(self._next_stub().GetModel, request, self._call(None, timeout_s)))

    async def health(self, service: str = "", *, timeout_s: float | None = None) -> str:
        """As `Client.health`."""
        request = health_pb2.HealthCheckRequest(service=service)
        try:
            return health_name(await self._send(self._health_stub.Check, request, self._call(None, timeout_s)))
        except ModelNotFound:
            return "SERVICE_UNKNOWN"

    async def close(self) -> None:
        """Close the connections; calls under way fail."""
        for channel in self._channels:
            await channel.close(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _open_channel(self, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
        # gRPC would bind the channel to some other loop, and calls would fail much later.
        asyncio.get_running_loop()
        if credentials is None:
            return grpc.aio.insecure_channel(self.target, CHANNEL_OPTIONS)
        return grpc.aio.secure_channel(self.target, credentials, CHANNEL_OPTIONS)

    async def _send(self, method: Any, request: Message, call: Call) -> Any:
        while True:
            try:
                return await method(request, timeout=call.remaining_s(), metadata=call.metadata)
            except grpc.RpcError as failure:
                await asyncio.sleep(call.pause_s(failure))

    async def _stream(
        self, images: Iterable[Image] | AsyncIterable[Image], top_k: int, explain: bool, call: Call
    ) -> AsyncIterator[tuple[int, Outcome]]:
        failures: list[Exception] = []

        async def requests() -> AsyncIterator[pb.ClassifyStreamRequest]:
            indices = itertools.count()
            try:
                async for image in _each(images):
                    yield self._stream_request(next(indices), await _read_image(image), top_k, explain)
            except Exception as failure:
                # gRPC would cancel the call, losing answers, and only log this.
                failures.append(failure)

        stub = self._next_stub()
        responses = stub.ClassifyStream(requests(), timeout=call.remaining_s(), metadata=call.metadata)
        try:
            async for response in responses:
                yield response.id, to_outcome(response.result, call.request_id)
        except grpc.RpcError as failure:
            raise from_rpc_error(failure, call.request_id) from failure
        finally:
            responses.cancel()
        if failures:
            raise failures[0]


async def _read_image(image: Image) -> bytes:
    return image if isinstance(image, bytes) else await asyncio.to_thread(read_image, image)


async def _each(images: Iterable[Image] | AsyncIterable[Image]) -> AsyncIterator[Image]:
    if isinstance(images, AsyncIterable):
        async for image in images:
            yield image
    else:
        for image in images:
            yield image
