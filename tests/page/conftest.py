"""One browser for all tests of the page. Where it cannot start: a failure in CI, else a skipped test that says why."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

import pytest


# Not for the session: as long as it is open, its thread has an event loop, and others cannot run one.
@pytest.fixture(scope="package")
def browser() -> Iterator[object]:
    found = shutil.which("chromium") or shutil.which("google-chrome")
    try:
        from playwright.sync_api import Error, sync_playwright
    except ImportError as reason:
        _no_browser(f"playwright is not installed ({reason})")
    if found is None:
        _no_browser("there is no chromium on the path; on Debian: apt-get install chromium")
    with sync_playwright() as playwright:
        try:
            # Chromium refuses its sandbox to root, and containers run tests as root.
            made = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        except Error as reason:
            _no_browser(f"chromium does not start: {reason}")
        yield made
        made.close()


def _no_browser(reason: str) -> None:
    if os.environ.get("CI") or os.environ.get("PENSTOCK_REQUIRE_COMPONENTS"):
        pytest.fail(f"the page cannot be tested, and this run requires it: {reason}")
    pytest.skip(f"the page cannot be tested: {reason}")
