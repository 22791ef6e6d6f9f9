"""A page in headless Chromium: what a person would see of it, and what went wrong."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@dataclass
class Opened:
    """A page that is open.

    Attributes:
        complaints: errors of its scripts and of its console.
        requests: everything it asked for, itself aside.
    """

    page: "Page"
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def size(self, selector: str) -> tuple[float, float]:
        """Width and height in pixels of the one element that is selected."""
        box = self.page.locator(selector).bounding_box()
        assert box is not None, f"{selector} is not shown"
        return box["width"], box["height"]


def needs_browser() -> pytest.MarkDecorator:
    """Skips where there is no browser, but never in CI, which installs one."""
    missing = "no Chromium (apt-get install chromium)" if not CHROMIUM else _missing_playwright()
    return pytest.mark.skipif(bool(missing) and not os.environ.get("CI"), reason=missing or "there is one")


def _missing_playwright() -> str:
    try:
        import playwright  # noqa: F401
    except ImportError:
        return "no playwright (pip install playwright)"
    return ""


@contextmanager
def opened(path: Path, width: int = 1200, height: int = 900) -> Iterator[Opened]:
    """A local file, laid out in a window of this size, without a network."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=CHROMIUM) as browser:
        page = browser.new_page(viewport={"width": width, "height": height}, offline=True)
        found = Opened(page)
        page.on("console", lambda message: found.complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: found.complaints.append(str(error)))
        page.on("request", lambda request: found.requests.append(request.url))
        page.goto(path.as_uri())
        found.requests.remove(path.as_uri())
        yield found
