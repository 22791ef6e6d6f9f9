"""The tag directories of TIFF 6.0 (section 2) and BigTIFF, which EXIF uses too."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

ORIENTATION = 0x0112

# What one value of an integer type takes, by the type's code (TIFF 6.0, section 2; 16 is BigTIFF's LONG8).
_INTEGER_FORMATS = {1: "B", 3: "H", 4: "I", 16: "Q"}
_TYPE_BYTES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8}

# Real directories hold a few dozen entries.
_MAX_ENTRIES = 4096


@dataclass(slots=True)
class Directory:
    """One directory.

    Attributes:
        tags: all that it has.
        values: the first value of each integer tag.
        value_at: where in the bytes that value lies.
        next_at: the offset of the next directory from the structure's start; 0 for none.
    """

    tags: set[int] = field(default_factory=set)
    values: dict[int, int] = field(default_factory=dict)
    value_at: dict[int, int] = field(default_factory=dict)
    next_at: int = 0


@dataclass(frozen=True, slots=True)
class Layout:
    """How a structure is written: its start, byte order "<" or ">", BigTIFF or not, the first directory's offset."""

    start: int
    order: str
    big: bool
    first_at: int

    @property
    def count_format(self) -> str:
        return self.order + ("Q" if self.big else "H")

    @property
    def entry_format(self) -> str:
        return self.order + ("HHQ8s" if self.big else "HHI4s")

    @property
    def offset_format(self) -> str:
        return self.order + ("Q" if self.big else "I")


def read_layout(data: bytes, start: int = 0) -> Layout:
    """The header of the TIFF structure at `start`. Raises struct.error when cut, ValueError when it is none."""
    order = {b"II": "<", b"MM": ">"}.get(data[start : start + 2])
    if order is None:
        raise ValueError("no byte order mark")
    (version,) = struct.unpack_from(order + "H", data, start + 2)
    if version not in (42, 43):
        raise ValueError("no TIFF version number")
    big = version == 43
    (first_at,) = struct.unpack_from(order + ("Q" if big else "I"), data, start + (8 if big else 4))
    return Layout(start, order, big, first_at)


def read_directory(data: bytes, layout: Layout, at: int) -> Directory:
    """The directory at offset `at`. Raises struct.error when it is cut, ValueError when it cannot be one."""
    directory = Directory()
    for tag, kind, count, inline_at in _entries(data, layout, at):
        directory.tags.add(tag)
        value_format = _INTEGER_FORMATS.get(kind)
        if value_format and count and tag not in directory.values:
            value_at = _value_at(data, layout, count * _TYPE_BYTES[kind], inline_at)
            if value_at + _TYPE_BYTES[kind] <= len(data):
                (directory.values[tag],) = struct.unpack_from(layout.order + value_format, data, value_at)
                directory.value_at[tag] = value_at
    directory.next_at = _next_at(data, layout, at)
    return directory


def count_directories(data: bytes, layout: Layout, most: int) -> int:
    """How many directories the chain holds, counting no further than `most`; a broken link ends it."""
    seen: set[int] = set()
    at = layout.first_at
    while at and at not in seen and len(seen) < most:
        seen.add(at)
        try:
            at = _next_at(data, layout, at)
        except (struct.error, ValueError):
            break
    return len(seen)


def read_orientation(data: bytes, start: int) -> int:
    """The EXIF orientation, 1 to 8, of the TIFF structure at `start`; 1 when it has none or is broken."""
    try:
        layout = read_layout(data, start)
        entries = _entries(data, layout, layout.first_at)
        value = next(
            (_orientation_value(data, layout, kind, at) for tag, kind, _, at in entries if tag == ORIENTATION), 1
        )
    except (struct.error, ValueError):
        return 1
    return value if 1 <= value <= 8 else 1


def _orientation_value(data: bytes, layout: Layout, kind: int, at: int) -> int:
    value: int = struct.unpack_from(layout.order + _INTEGER_FORMATS.get(kind, "H"), data, at)[0]
    return value


def _entries(data: bytes, layout: Layout, at: int) -> Iterator[tuple[int, int, int, int]]:
    """Tag, type, count and the place of the value (or of its offset) for each entry."""
    count, position = _entry_count(data, layout, at)
    size = struct.calcsize(layout.entry_format)
    inline = 12 if layout.big else 8
    for _ in range(count):
        tag, kind, values, _ = struct.unpack_from(layout.entry_format, data, position)
        yield tag, kind, values, position + inline
        position += size


def _entry_count(data: bytes, layout: Layout, at: int) -> tuple[int, int]:
    position = layout.start + at
    if at <= 0 or position > len(data):
        raise ValueError("the directory lies past the end")
    (count,) = struct.unpack_from(layout.count_format, data, position)
    if count > _MAX_ENTRIES:
        raise ValueError(f"a directory of {count} entries")
    return count, position + struct.calcsize(layout.count_format)


def _value_at(data: bytes, layout: Layout, size: int, inline_at: int) -> int:
    if size <= (8 if layout.big else 4):
        return inline_at
    offset: int = struct.unpack_from(layout.offset_format, data, inline_at)[0]
    return layout.start + offset


def _next_at(data: bytes, layout: Layout, at: int) -> int:
    count, position = _entry_count(data, layout, at)
    position += count * struct.calcsize(layout.entry_format)
    following: int = struct.unpack_from(layout.offset_format, data, position)[0]
    return following
