# SPDX-License-Identifier: Apache-2.0
"""A Chromium without a window, driven through chromedriver by the W3C WebDriver protocol, with Python's own HTTP.

    with Browser(tmp_path) as b:
        b.open("http://127.0.0.1:29400/")
        assert b.js("return document.title") == "rdzv"
"""

import base64
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import urllib.request

import harness

ARGUMENTS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--force-device-scale-factor=1", "--hide-scrollbars", "--no-proxy-server",
]  # fmt: skip
KEYS = {"Tab": "\ue004", "Enter": "\ue007", "Left": "\ue012", "Up": "\ue013", "Right": "\ue014", "Down": "\ue015", "Home": "\ue011", "End": "\ue010"}


class Browser:
    def __init__(self, folder, *arguments):
        harness.need("chromium and chromedriver (chromium-driver)", bool(shutil.which("chromium") and shutil.which("chromedriver")))
        said, found = "", None
        for _ in range(3):  # its port is free for IPv4, and may be taken for IPv6
            self.driver = subprocess.Popen(
                ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True, env=dict(os.environ, HOME=str(folder)),
            )  # fmt: skip
            for line in self.driver.stdout:
                said += line
                if found := re.search(r"started successfully on port (\d+)", line):
                    break
            if found or "port not available" not in said:
                break
        assert found, f"chromedriver did not start: {said}"
        self.url = f"http://127.0.0.1:{found[1]}/session"
        options = {"binary": shutil.which("chromium"), "args": [*ARGUMENTS, f"--user-data-dir={folder}/chromium", *arguments]}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}, "timeouts": {"script": 30000, "pageLoad": 60000}}
        try:
            self.url += "/" + self.call("POST", "", {"capabilities": {"alwaysMatch": wanted}})["sessionId"]
        except BaseException:
            self.close()
            raise
        self.cdp("Network.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        with contextlib.suppress(OSError):
            self.call("DELETE", "")
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.driver.pid, signal.SIGKILL)
        self.driver.wait()
        self.driver.stdout.close()

    def call(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60 * harness.SLOW) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as e:
            raise AssertionError(f"{method} {path}: {json.load(e)['value']['message']}") from e

    def cdp(self, command, **parameters):
        return self.call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def open(self, url):
        self.call("POST", "/url", {"url": url})

    def js(self, script, *arguments):
        """What the script returns. The page's own names are not visible to it, but the document is."""
        return self.call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def js_later(self, script, *arguments):
        """What the script passes to its last argument."""
        return self.call("POST", "/execute/async", {"script": script, "args": list(arguments)})

    def text(self, selector="body"):
        return self.js("const e = document.querySelector(arguments[0]); return e && !e.hidden ? e.innerText : ''", selector)

    def until(self, what, script, *arguments, timeout=10.0):
        """Waits until the script returns something true, which is returned."""
        return harness.until(lambda: f"{what}\n{self.text()}", lambda: self.js(script, *arguments), timeout)

    def shows(self, text, selector="body", timeout=20.0):
        self.until(f"{text!r} is seen", "const e = document.querySelector(arguments[1]); return e && e.innerText.includes(arguments[0])", text, selector, timeout=timeout)

    def looks_until(self, text, selector="body"):
        """How many looks at the daemon, begun from now on, the page had when the text was seen. Their number does not depend on how busy the machine is."""
        seen, looks = self.js_later(
            """const [text, selector, done] = arguments, began = performance.now(), seen = () => (document.querySelector(selector)?.innerText || '').includes(text);
            let looks = 0;
            new PerformanceObserver((l) => { looks += l.getEntries().filter((e) => e.name.includes('/status') && e.startTime >= began).length; }).observe({ type: 'resource' });
            const timer = setInterval(() => {
              if (!seen() && looks < 20 && performance.now() < began + 25000) return;
              clearInterval(timer);
              done([seen(), looks]);
            }, 10);""", text, selector)
        assert seen, f"{text!r} is not seen after {looks} looks:\n{self.text()}"
        return looks

    def press(self, *keys):
        actions = [{"type": kind, "value": KEYS.get(key, key)} for key in keys for kind in ("keyDown", "keyUp")]
        self.call("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def emulate(self, width=1280, height=800, scale=1, **media):
        """media: dark=True, still=True"""
        self.cdp("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False)
        features = [("prefers-color-scheme", "dark" if media.get("dark") else "light"), ("prefers-reduced-motion", "reduce" if media.get("still") else "no-preference")]
        self.cdp("Emulation.setEmulatedMedia", media="", features=[{"name": name, "value": value} for name, value in features])

    def picture(self, path, full=True):
        """A PNG of the page as it is, or of its window."""
        size = self.js("return [document.documentElement.clientWidth, Math.ceil(document.body.getBoundingClientRect().bottom)]") if full else None
        clip = {"clip": {"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1}} if size else {}
        data = self.cdp("Page.captureScreenshot", format="png", captureBeyondViewport=full, **clip)["data"]
        path.write_bytes(base64.b64decode(data))

    def log(self):
        """What the page's console has got since the last call: warnings, errors, violations of the policy."""
        return [f"{e['level']} {e['message']}" for e in self.call("POST", "/se/log", {"type": "browser"})]
