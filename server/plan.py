"""What the supervisor and its children tell each other."""

import pickle
from dataclasses import dataclass
from typing import Any

from pipeline.info import ModelInfo
from pipeline.shared import Layout
from pipeline.wire import EngineId, Sender
from server.settings import Settings


@dataclass(frozen=True, slots=True)
class Place:
    """What a child is for. A dead one is replaced by another in the same place.

    Attributes:
        role: "frontend" or "engine".
        index: which one of its role.
    """

    role: str
    index: int

    def __str__(self) -> str:
        return f"{self.role}-{self.index}"


@dataclass(frozen=True, slots=True)
class Plan:
    """What a child is started with.

    Attributes:
        incarnation: how many have been in this place before.
        parent: process id of the supervisor.
        base: see `wire.new_base`.
        port: that all frontends share.
        own_port: of a frontend alone; 0 if there is none.
        device: of an engine.
        engines: number of them.
        blocks: file descriptors of the frontends' blocks; a frontend gets its own only.
        descriptors: file descriptors of the engines' pipes: the writers; an engine gets the reader of its own.
        replies: file descriptors of the frontends' pipes: the writers; a frontend gets the reader of its own.
        page: file descriptor of the status page.
    """

    place: Place
    incarnation: int
    parent: int
    settings: Settings
    base: str
    port: int
    own_port: int
    device: str
    engines: int
    blocks: tuple[int, ...]
    descriptors: tuple[int, ...]
    replies: tuple[int, ...]
    page: int

    @property
    def sender(self) -> Sender:
        """The child, as a frontend."""
        return Sender(self.place.index, self.incarnation)

    @property
    def engine(self) -> EngineId:
        """The child, as an engine."""
        return EngineId(self.place.index, self.incarnation)


@dataclass(frozen=True, slots=True)
class News:
    """What the frontends must know, told again and again.

    Attributes:
        info, layout: None until an engine has told.
        engines: that are warm.
        is_serving: whether calls are answered.
    """

    info: ModelInfo | None = None
    layout: Layout | None = None
    engines: tuple[EngineId, ...] = ()
    is_serving: bool = False


@dataclass(frozen=True, slots=True)
class Listening:
    """A frontend takes calls."""


@dataclass(frozen=True, slots=True)
class Serving:
    """A frontend has heard of an engine that answers them."""


@dataclass(frozen=True, slots=True)
class Described:
    """An engine knows its model, and waits for `UseLayout`."""

    info: ModelInfo


@dataclass(frozen=True, slots=True)
class Warm:
    """An engine takes images; see `info.ModelInfo`."""

    execution: str
    cost: str
    gpu_decode: str


@dataclass(frozen=True, slots=True)
class Idle:
    """An engine will not read or write the slots of a dead frontend any more."""

    sender: Sender


@dataclass(frozen=True, slots=True)
class Recompiled:
    """An engine has compiled something after its warm-up."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A child cannot start, and ends; the reason is one line for people."""

    reason: str


@dataclass(frozen=True, slots=True)
class Profiled:
    """An engine has recorded a profile, or why not; see `profiling.record`."""

    number: int
    trace: bytes
    refusal: str = ""


Event = Listening | Serving | Described | Warm | Idle | Recompiled | Refused | Profiled


@dataclass(frozen=True, slots=True)
class Report:
    """What a child tells the supervisor."""

    place: Place
    incarnation: int
    event: Event


@dataclass(frozen=True, slots=True)
class UseLayout:
    """To an engine: how the blocks are divided."""

    layout: Layout


@dataclass(frozen=True, slots=True)
class Forget:
    """To an engine: a frontend has died; to be answered with `Idle`."""

    sender: Sender


@dataclass(frozen=True, slots=True)
class Stop:
    """To an engine: answer what has come, then end."""


@dataclass(frozen=True, slots=True)
class RecordProfile:
    """To an engine: see `profiling.record`; to be answered with `Profiled` of the same number."""

    number: int
    batches: int
    limit_s: float


@dataclass(frozen=True, slots=True)
class EndProfile:
    """To an engine: nobody waits for the profile of this number any more."""

    number: int


Order = UseLayout | Forget | Stop | RecordProfile | EndProfile


def pack(message: Any) -> bytes:
    """For a socket that only processes of this user can reach."""
    return pickle.dumps(message)


def unpack(message: bytes) -> Any:
    """The other way from `pack`."""
    return pickle.loads(message)
