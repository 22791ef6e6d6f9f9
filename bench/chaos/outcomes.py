"""What became of each image, which outcomes are right, and the checks over all of them."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

# The outcomes that no caller may ever see, beside gRPC's statuses.
WRONG_ANSWER = "WRONG_ANSWER"  # the answer to another image
LOST = "LOST"  # no outcome at all
TWICE = "TWICE"  # a second answer
NO_PUSHBACK = "NO_PUSHBACK"  # refused without being told when to come back

# What is right for an image by itself.
BY_IMAGE: Mapping[str, frozenset[str]] = {
    "good": frozenset({"OK"}),
    "garbage": frozenset({"INVALID_ARGUMENT"}),
    "truncated": frozenset({"INVALID_ARGUMENT"}),
    "oversized": frozenset({"INVALID_ARGUMENT"}),
    "huge": frozenset({"RESOURCE_EXHAUSTED"}),
}
# What is right too, because of the call that carries it.
BY_TEMPER: Mapping[str, frozenset[str]] = {
    "patient": frozenset(),
    "late": frozenset({"DEADLINE_EXCEEDED"}),
    "cancels": frozenset({"CANCELLED"}),
}
BY_SHAPE: Mapping[str, frozenset[str]] = {
    "unary": frozenset({"RESOURCE_EXHAUSTED"}),
    "batch": frozenset({"RESOURCE_EXHAUSTED"}),
    "stream": frozenset(),  # held back instead
}
# What is right too while something has been struck down.
_STRUCK = "UNAVAILABLE"
# A connection that is old closes once its calls are done, for the server: one that it has refused in the middle of its
# message, or ended at its deadline, may read of the closing before its status. Accepted calls in time never do.
_OLD_CONNECTION = "max_age"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one image.

    Attributes:
        shape, temper: of its call, keys of BY_SHAPE and BY_TEMPER.
        image: a key of BY_IMAGE.
        status: a gRPC status, or one of the words above.
        started_s, ended_s: of its call, in seconds of CLOCK_MONOTONIC.
        details: what a call that failed was told.
    """

    shape: str
    temper: str
    image: str
    status: str
    started_s: float
    ended_s: float
    details: str = ""


@dataclass(frozen=True, slots=True)
class Strike:
    """A process struck down.

    Attributes:
        action: "kill", "freeze" (for good) or "pause" (for a moment: no call may suffer).
        role: "frontend" or "engine".
        at_s: when, in seconds of CLOCK_MONOTONIC.
        replaced_s: when another process was in its place; None if that did not happen in time.
    """

    action: str
    role: str
    at_s: float
    replaced_s: float | None

    @property
    def is_fatal(self) -> bool:
        """Whether calls may fail for it."""
        return self.action != "pause"


@dataclass(frozen=True, slots=True)
class Spell:
    """A time in which UNAVAILABLE is right, in seconds of CLOCK_MONOTONIC."""

    from_s: float
    to_s: float

    def touches(self, outcome: Outcome) -> bool:
        """Whether the outcome's call was under way in it."""
        return outcome.started_s <= self.to_s and outcome.ended_s >= self.from_s


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must hold."""

    name: str
    held: bool
    found: str


def is_right(outcome: Outcome, spells: Sequence[Spell]) -> bool:
    """Whether the table allows this outcome."""
    allowed = BY_IMAGE[outcome.image] | BY_TEMPER[outcome.temper] | BY_SHAPE[outcome.shape]
    if outcome.status == _STRUCK:
        if _OLD_CONNECTION in outcome.details and (outcome.temper == "late" or outcome.image == "huge"):
            return True
        return any(spell.touches(outcome) for spell in spells)
    return outcome.status in allowed


def spells(strikes: Iterable[Strike], unready: Iterable[Spell], grace_s: float) -> list[Spell]:
    """When UNAVAILABLE is right: from a fatal strike until `grace_s` after the replacement, and while not serving.

    Args:
        unready: when health said NOT_SERVING, or could not be asked.
    """
    struck = [Spell(strike.at_s, (strike.replaced_s or strike.at_s) + grace_s) for strike in strikes if strike.is_fatal]
    return struck + [Spell(spell.from_s, spell.to_s + grace_s) for spell in unready]


def check_outcomes(outcomes: Sequence[Outcome], right_spells: Sequence[Spell]) -> Iterator[Check]:
    """One right outcome for each image."""
    count = Counter(outcome.status for outcome in outcomes)
    answered = sum(outcome.status == "OK" for outcome in outcomes)
    yield Check("images were answered", answered > 0, f"{answered:,} of {len(outcomes):,}")
    for name, status in (
        ("no answer went to the wrong caller", WRONG_ANSWER),
        ("no image without an outcome", LOST),
        ("no image with two outcomes", TWICE),
        ("every refusal said when to come back", NO_PUSHBACK),
    ):
        yield Check(name, not count[status], f"{count[status]:,}")
    special = {WRONG_ANSWER, LOST, TWICE, NO_PUSHBACK}
    wrong = Counter(
        f"{outcome.status} for {outcome.image}, {outcome.temper}, {outcome.shape} ({outcome.details})"
        for outcome in outcomes
        if outcome.status not in special and not is_right(outcome, right_spells)
    )
    yield Check("every status is one of the right kind", not wrong, _most(wrong))


def check_struck(strikes: Sequence[Strike]) -> Check:
    """Something was struck down for good: otherwise the run shows nothing."""
    count = sum(strike.is_fatal for strike in strikes)
    return Check("processes were struck down", count > 0, f"{count} for good, {len(strikes) - count} for a moment")


def check_speed_of_failure(outcomes: Iterable[Outcome], strikes: Sequence[Strike], within_s: float) -> Check:
    """Calls that were under way when an engine was killed, and failed for it, failed within `within_s` seconds."""
    kills = [strike.at_s for strike in strikes if strike.role == "engine" and strike.action == "kill"]
    waits = [
        outcome.ended_s - at_s
        for outcome in outcomes
        if outcome.status == _STRUCK
        for at_s in kills
        if outcome.started_s < at_s <= outcome.ended_s
    ]
    worst = max(waits, default=0.0)
    return Check(f"a killed engine's calls failed within {within_s:g} s", worst <= within_s, f"{worst:.2f} s at most")


def check_replacements(strikes: Sequence[Strike], within_s: float) -> Check:
    """All that was struck down for good came back."""
    waits = [(strike.replaced_s or float("inf")) - strike.at_s for strike in strikes if strike.is_fatal]
    worst = max(waits, default=0.0)
    return Check(f"all came back within {within_s:g} s", worst <= within_s, f"{len(waits)} did, the last {worst:.1f} s")


def _most(wrong: Counter[str]) -> str:
    return "; ".join(f"{count:,} {what}" for what, count in wrong.most_common(5)) or "0 were not"
