"""What a JPEG file says of itself before any of it is decoded."""

from typing import NamedTuple


class JpegFrame(NamedTuple):
    """What the frame header, the application segments and the scan headers say.

    Attributes:
        width, height: in pixels, as stored.
        precision: bits per sample.
        component_ids: one a component: 1 of them is grey, 3 colour, 4 CMYK or YCCK.
        sampling: (horizontal, vertical) factor of each component.
        progressive, arithmetic, lossless, hierarchical: the coding process (T.81, table B.1).
        jfif: whether there is a JFIF segment.
        adobe_transform: of the Adobe APP14 segment: 0 for RGB or CMYK, 1 for YCbCr, 2 for YCCK; None without one.
        has_profile: whether an ICC profile is embedded.
        orientation: EXIF orientation, 1 to 8.
        scans: how many were found; where one scan holds the whole image, none is looked for after it.
        complete: whether the end marker was found after the last scan.
        all_sent: whether the scan headers cover each coefficient of each component to its last bit.
        trailing_bytes: how many follow the end marker.
        junk_bytes: how many lie between segments, where none belong.
    """

    width: int
    height: int
    precision: int
    component_ids: tuple[int, ...]
    sampling: tuple[tuple[int, int], ...]
    progressive: bool
    arithmetic: bool
    lossless: bool
    hierarchical: bool
    jfif: bool
    adobe_transform: int | None
    has_profile: bool
    orientation: int
    scans: int
    complete: bool
    all_sent: bool
    trailing_bytes: int
    junk_bytes: int

    @property
    def components(self) -> int:
        return len(self.component_ids)

    @property
    def colour(self) -> str:
        """One of "grey", "YCbCr", "RGB", "CMYK", "YCCK", "unknown", by libjpeg's rules (`default_decompress_parms`)."""
        if self.components == 3:
            return "RGB" if self._is_rgb() else "YCbCr"
        if self.components == 4:
            return "YCCK" if self.adobe_transform else "CMYK"
        return "grey" if self.components == 1 else "unknown"

    @property
    def may_be_rgb(self) -> bool:
        """Whether it is RGB, by libjpeg's rules or as another decoder may read its signs, which can disagree."""
        is_named_rgb = self.component_ids == (0x52, 0x47, 0x42)
        return self.components == 3 and (is_named_rgb or self.adobe_transform not in (None, 1))

    @property
    def baseline(self) -> bool:
        """Whether it is a sequential 8-bit Huffman JPEG, which hardware decoders take."""
        odd = self.progressive or self.arithmetic or self.lossless or self.hierarchical
        return self.precision == 8 and not odd

    def _is_rgb(self) -> bool:
        if self.jfif:
            return False
        if self.adobe_transform is not None:
            return self.adobe_transform == 0
        return self.component_ids == (0x52, 0x47, 0x42)
