"""A headless Chromium for tests, driven over a pair of pipes: the DevTools protocol as JSON that ends in NUL, on descriptors 3 and 4.

Local files only. The browser has a profile of its own, and its whole process group is gone when the `with` ends.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--remote-debugging-pipe",
)
# Two cores may be shared with everything else that is tested.
TIMEOUT_S = 90.0


class BrowserError(Exception):
    pass


def find() -> str | None:
    return shutil.which("chromium")


class Page:
    """One tab. `requests` are the addresses that it has asked for, `console` what it has complained of."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session
        self.requests: list[str] = []
        self.console: list[str] = []

    def send(self, method: str, **parameters: Any) -> Any:
        return self._browser.send(method, session=self._session, **parameters)

    def close(self) -> None:
        self._browser.close(self._session)

    def heard(self, message: dict[str, Any]) -> None:
        what, said = message["method"], message["params"]
        if what == "Network.requestWillBeSent":
            self.requests.append(said["request"]["url"])
        elif what == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning", "assert"):
            self.console.append(" ".join(str(a.get("value", a.get("description"))) for a in said["args"]))
        elif what == "Runtime.exceptionThrown":
            details = said["exceptionDetails"]
            self.console.append(f"{details['text']} {details.get('exception', {}).get('description', '')} (line {details['lineNumber']})")
        elif what == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning"):
            self.console.append(said["entry"]["text"])

    def size(self, width: int, height: int, *, scale: float = 1.0) -> None:
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False)

    def media(self, **features: str) -> None:
        """Emulate media features: prefers_color_scheme="dark"."""
        self.send("Emulation.setEmulatedMedia", features=[{"name": k.replace("_", "-"), "value": v} for k, v in features.items()])

    def open(self, path: Path, *, ready: str = "document.documentElement.dataset.ready === 'yes'") -> None:
        self.send("Page.navigate", url=path.absolute().as_uri())
        self.wait(ready)

    def evaluate(self, expression: str) -> Any:
        """The value of an expression, of a promise what it comes to."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise BrowserError(f"{expression}: {answer['exceptionDetails'].get('exception', {}).get('description')}")
        return answer["result"].get("value")

    def wait(self, condition: str) -> None:
        """Until an expression is true."""
        until = time.monotonic() + TIMEOUT_S
        while time.monotonic() < until:
            with contextlib.suppress(BrowserError):
                if self.evaluate(condition):
                    return
            self._browser.listen(0.05)
        raise BrowserError(f"never true: {condition}; console: {self.console}")

    def key(self, key: str, *, shift: bool = False) -> None:
        """Press and release a key, as somebody types it."""
        text = key if len(key) == 1 else {"Enter": "\r"}.get(key, "")
        codes = {"Enter": 13, "Escape": 27, "Tab": 9, "Home": 36, "End": 35, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}
        modifiers = 8 if shift else 0
        code = codes.get(key, ord(key.upper()) if len(key) == 1 and key.isalnum() else 0)
        self.send("Input.dispatchKeyEvent", type="keyDown", key=key, text=text, windowsVirtualKeyCode=code, modifiers=modifiers)
        self.send("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code, modifiers=modifiers)

    def type(self, text: str) -> None:
        self.send("Input.insertText", text=text)

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, x, y, button="left", buttons=1 if kind == "mousePressed" else 0, clickCount=1)

    def box(self, selector: str) -> dict[str, float]:
        """Where an element stands in the window, scrolled into view."""
        found = self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'center', behavior: 'instant'}});"
            " const b = e.getBoundingClientRect(); return {x: b.x, y: b.y, width: b.width, height: b.height}; })()"
        )
        return dict(found)

    def accessible(self) -> list[dict[str, Any]]:
        """The accessibility tree as a flat list: role, name, and properties by name."""
        nodes = self.send("Accessibility.getFullAXTree")["nodes"]
        return [
            {
                "role": n.get("role", {}).get("value"),
                "name": n.get("name", {}).get("value", ""),
                **{p["name"]: p["value"].get("value") for p in n.get("properties", ())},
            }
            for n in nodes
            if not n.get("ignored")
        ]

    def screenshot(self, *, whole: bool = False) -> bytes:
        data = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        return base64.b64decode(data)


class Browser:
    def __init__(self, send: int, receive: int) -> None:
        self._send = send
        self._receive = receive
        self._numbers = itertools.count(1)
        self._pages: dict[str, Page] = {}
        self._targets: dict[str, str] = {}
        self._rest = b""
        self._answers: dict[int, dict[str, Any]] = {}

    def page(self) -> Page:
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session)
        self._targets[session] = target
        for domain in ("Page", "Runtime", "Network", "Log", "Accessibility"):
            page.send(f"{domain}.enable")
        return page

    def close(self, session: str) -> None:
        del self._pages[session]
        self.send("Target.closeTarget", targetId=self._targets.pop(session))

    def send(self, method: str, *, session: str | None = None, **parameters: Any) -> Any:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters} | ({"sessionId": session} if session else {})
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._send, data) :]
        until = time.monotonic() + TIMEOUT_S
        while number not in self._answers:
            if time.monotonic() > until:
                raise BrowserError(f"no answer to {method} in {TIMEOUT_S} s")
            self.listen(0.5)
        answer = self._answers.pop(number)
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def listen(self, seconds: float) -> None:
        """Take in what the browser has to say, waiting so long for it."""
        if not select.select([self._receive], [], [], seconds)[0]:
            return
        data = os.read(self._receive, 1 << 20)
        if not data:
            raise BrowserError("the browser has gone")
        *whole, self._rest = (self._rest + data).split(b"\0")
        for raw in whole:
            message = json.loads(raw)
            if "id" in message:
                self._answers[message["id"]] = message
            elif message.get("sessionId") in self._pages:
                self._pages[message["sessionId"]].heard(message)


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """A browser, and its end. Raises BrowserError where there is no Chromium."""
    program = find()
    if program is None:
        raise BrowserError("there is no chromium here: apt-get install chromium")
    to_browser, from_browser = os.pipe(), os.pipe()

    def arrange() -> None:
        # 3 may be one of ours already.
        reading, writing = os.dup(to_browser[0]), os.dup(from_browser[1])
        os.dup2(reading, 3)
        os.dup2(writing, 4)

    with tempfile.TemporaryDirectory(prefix="unhang-chromium-", ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(3, 4),
            preexec_fn=arrange,
            start_new_session=True,
            env={**os.environ, "HOME": profile},
        )
        os.close(to_browser[0])
        os.close(from_browser[1])
        try:
            yield Browser(to_browser[1], from_browser[0])
        finally:
            os.close(to_browser[1])
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=30)
            os.close(from_browser[0])
