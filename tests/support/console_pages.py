"""Drives the console's pages in Chromium, as an operator would."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Locator, Page, expect, sync_playwright

from support.console_process import ConsoleProcess
from support.programs import required_program
from support.waiting import PATIENCE_S

_ARGUMENTS = [
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--font-render-hinting=none",
]
_WAIT_MS = PATIENCE_S * 1000
_SERIOUS = {"serious", "critical"}

PHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}


@contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's Chromium without a window."""
    program = required_program("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=_ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


class ConsolePages:
    """A browser window of one user; collects what its scripts complain about."""

    def __init__(self, browser: Browser, console: ConsoleProcess, cluster: str, **options: Any) -> None:
        wanted: dict[str, Any] = {"viewport": {"width": 1280, "height": 900}, "locale": "en-US", **options}
        self.context: BrowserContext = browser.new_context(timezone_id="UTC", reduced_motion="reduce", **wanted)
        self.context.set_default_timeout(_WAIT_MS)
        self.page: Page = self.context.new_page()
        self.complaints: list[str] = []
        self.page.on("console", self._note)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("dialog", lambda dialog: self.complaints.append(f"dialog: {dialog.message}"))
        self._console = console
        self._cluster = cluster

    def _note(self, message: ConsoleMessage) -> None:
        # A refusal of the API is an answer; Chromium logs it all the same.
        if message.type == "error" and "the server responded with a status of" not in message.text:
            self.complaints.append(message.text)

    def sign_in_once(self) -> ConsolePages:
        """By the address that the terminal shows."""
        self.page.goto(self._console.login)
        self._ready()
        return self

    def sign_in(self, name: str, password: str) -> ConsolePages:
        self.page.goto(f"{self._console.address}/login")
        self.page.get_by_label("Name").fill(name)
        self.page.get_by_label("Password").fill(password)
        self.page.get_by_role("button", name="Sign in").click()
        self._ready()
        return self

    def open(self, path: str, **query: object) -> Page:
        """A page of the cluster by its address."""
        text = "&".join(f"{name}={quote(str(value), safe='')}" for name, value in query.items())
        self.page.goto(f"{self._console.address}/c/{self._cluster}{path}{'?' if text else ''}{text}")
        self._ready()
        return self.page

    @property
    def address(self) -> str:
        return self._console.address

    def row(self, text: str) -> Locator:
        return self.page.locator("#main tbody tr", has_text=text).first

    def toast(self, text: str) -> None:
        """The word after an action."""
        expect(self.page.locator(".toast", has_text=text).first).to_be_visible(timeout=_WAIT_MS)

    def problems(self, where: str) -> list[str]:
        """What axe finds that is serious in what is in view."""
        found = Axe().run(self.page).response["violations"]
        return [
            f"{where}: {each['id']} {each['help']}: {each['nodes'][0]['html'][:200]}"
            for each in found
            if each["impact"] in _SERIOUS
        ]

    def close(self) -> None:
        self.context.close()

    def _ready(self) -> None:
        self.page.wait_for_selector("#main[data-ready]", state="attached")
