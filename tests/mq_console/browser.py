"""Debian's Chromium, unpacked below build/chromium by `make browser`, driven by Selenium. No other file knows them."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
UNPACKED = ROOT / "build" / "chromium"
DEADLINE_S = 30.0

_FONTS = """<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig><dir>{fonts}</dir><dir>/usr/share/fonts</dir><cachedir>{cache}</cachedir></fontconfig>
"""
_ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",  # tests run as root as well, and open our own pages only
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
)


class Browser:
    """A browser with a page. Owns its processes."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def open(self, address: str) -> None:
        self.driver.get(address)

    def size(self, width: int, height: int) -> None:
        """Of the page, also below what a window may have."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def colours(self, scheme: str) -> None:
        """`light` or `dark`, as the system would have it."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def text(self, selector: str = "body") -> str:
        """What can be read there now; "" if it is not there."""
        script = "const e = document.querySelector(arguments[0]); return e ? e.innerText : ''"
        return str(self.driver.execute_script(script, selector))

    def run(self, script: str, *arguments: object) -> Any:
        return self.driver.execute_script(script, *arguments)

    def until(self, condition: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> Any:
        """The condition's first true answer."""
        end = time.monotonic() + deadline_s
        while not (found := condition()):
            assert time.monotonic() < end, f"not within {deadline_s:g} s: {what}; the page says {self.text()!r}"
            time.sleep(0.02)
        return found

    def log(self) -> list[str]:
        """What the browser has complained about since it was asked last."""
        return [f"{each['level']}: {each['message']}" for each in self.driver.get_log("browser")]

    def press(self, keys: str) -> None:
        """Typed where the focus is."""
        from selenium.webdriver import ActionChains

        ActionChains(self.driver).send_keys(keys).perform()

    def shoot(self, path: Path) -> None:
        self.driver.save_screenshot(str(path))


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser that reaches loopback addresses alone."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(UNPACKED / "usr/lib/chromium/chromium")
    for argument in _ARGUMENTS:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with tempfile.TemporaryDirectory(prefix="tritonmq-browser-") as scratch:
        fonts = Path(scratch) / "fonts.conf"
        fonts.write_text(_FONTS.format(fonts=UNPACKED / "usr/share/fonts", cache=Path(scratch) / "fonts"))
        environment = {
            **os.environ,
            "LD_LIBRARY_PATH": ":".join(
                str(UNPACKED / "usr/lib/x86_64-linux-gnu" / each) for each in ("", "pulseaudio")
            ),
            "FONTCONFIG_FILE": str(fonts),
            "HOME": scratch,
        }
        service = webdriver.ChromeService(str(UNPACKED / "usr/bin/chromedriver"), env=environment)
        driver = webdriver.Chrome(options=options, service=service)
        try:
            yield Browser(driver)
        finally:
            driver.quit()
