"""What frontends and engines send each other: a few dozen bytes an image; pixels and scores lie in shared memory."""

import enum
import os
import secrets
import struct
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import zmq

_DESCRIPTOR = struct.Struct("<IIIIIqIII6d")
_REPLY = struct.Struct("<IIHH4q")
REPLY_BYTES = _REPLY.size


class Outcome(enum.IntEnum):
    """What became of an image."""

    ANSWERED = 0
    CANCELLED = 1
    EXPIRED = 2
    FAILED = 3
    UNDECODED = 4  # the GPU's decoder does not take the file: the frontend is to decode it


class Sender(NamedTuple):
    """A frontend, and how often it has been started: what a dead one has sent is not its successor's."""

    frontend: int
    incarnation: int


class EngineId(NamedTuple):
    """An engine, and how often it has been started."""

    engine: int
    incarnation: int


class Descriptor(NamedTuple):
    """An image that waits in a slot.

    Attributes:
        incarnation: of the engine that it is for: what a dead one has not read is not its successor's.
        generation: of the slot when it was sent; what comes late is told by it.
        queued_ns: of CLOCK_MONOTONIC.
        encoded: see `request.Encoded`; of size 0 where the slot holds pixels.
        geometry: see `canvas.Geometry.row`.
    """

    sender: Sender
    incarnation: int
    slot: int
    generation: int
    queued_ns: int
    geometry: tuple[float, ...]
    encoded: tuple[int, int, int] = (0, 0, 0)

    def pack(self) -> bytes:
        """The message of one image."""
        ids = (*self.sender, self.incarnation, self.slot, self.generation)
        return _DESCRIPTOR.pack(*ids, self.queued_ns, *self.encoded, *self.geometry)

    def row(self) -> tuple[float, ...]:
        """See `canvas.Geometry.row`."""
        return self.geometry


class Reply(NamedTuple):
    """What became of the image in a slot: the slot is its frontend's again.

    Attributes:
        decoded_ns, batched_ns, forward_start_ns, forward_end_ns: of CLOCK_MONOTONIC; see `request.Stamps`.
    """

    slot: int
    generation: int
    outcome: int
    batch_fill: int
    decoded_ns: int = 0
    batched_ns: int = 0
    forward_start_ns: int = 0
    forward_end_ns: int = 0


def unpack_descriptor(message: bytes) -> Descriptor:
    """The other way from `Descriptor.pack`."""
    fields = _DESCRIPTOR.unpack(message)
    incarnation, slot, generation, queued_ns = fields[2:6]
    return Descriptor(Sender(*fields[:2]), incarnation, slot, generation, queued_ns, fields[9:], fields[6:9])


def pack_replies(replies: Iterable[Reply]) -> bytes:
    """One message for all images of a frontend in a batch."""
    return b"".join(_REPLY.pack(*reply) for reply in replies)


def unpack_replies(message: bytes) -> Iterator[Reply]:
    """The other way from `pack_replies`."""
    return map(Reply._make, _REPLY.iter_unpack(message))


def new_base() -> str:
    """Where the sockets of one server begin. They are abstract: no file is left behind."""
    return f"ipc://@warmlane-{secrets.token_hex(8)}"


def engine_address(base: str, engine: EngineId) -> str:
    """Where an engine listens for the supervisor's orders."""
    return f"{base}-engine-{engine.engine}-{engine.incarnation}"


def news_address(base: str) -> str:
    """Where the supervisor tells what has changed."""
    return f"{base}-news"


def reports_address(base: str) -> str:
    """Where the supervisor listens."""
    return f"{base}-reports"


def received(socket: "zmq.Socket[Any]") -> Iterator[bytes]:
    """All that has come, without waiting. To be read to its end: the socket's descriptor tells only of what is new."""
    while True:
        try:
            yield socket.recv(zmq.NOBLOCK)
        except zmq.Again:
            return


def listener(kind: int, address: str) -> "zmq.Socket[Any]":
    """A bound socket that takes connections of processes of this user only: abstract sockets have no permissions."""
    socket: zmq.Socket[Any] = zmq.Context.instance().socket(kind)
    socket.linger = 0
    socket.rcvhwm = socket.sndhwm = 0
    socket.setsockopt(zmq.IPC_FILTER_UID, os.getuid())
    socket.bind(address)
    return socket


def caller(kind: int, address: str) -> "zmq.Socket[Any]":
    """A connected socket. What it has not sent when it is closed is lost; what bounds its queue is the slots."""
    socket: zmq.Socket[Any] = zmq.Context.instance().socket(kind)
    socket.linger = 0
    socket.rcvhwm = socket.sndhwm = 0
    socket.connect(address)
    return socket
