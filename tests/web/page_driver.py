"""The page as a test uses it: files dropped, points of the picture clicked, what it works on read."""

from __future__ import annotations

import contextlib

from page_fakes import PageService, served_page
from playwright.sync_api import expect
from web_fakes import picture

__all__ = ["Driver", "expect", "opened", "with_objects"]

READ = """async () => {
  const { work, metricsOf } = await import("/static/js/work.js");
  const history = work.current?.history;
  return {
    objects: (history?.objects ?? []).map((object) => ({ ...object, metrics: metricsOf(object) ?? null })),
    past: history?.past.length ?? 0, selected: [...work.selected], mode: work.mode, hovered: work.hovered,
  };
}"""
CAMERA = """async () => {
  const { camera } = await import("/static/js/stage.js");
  const { left, top } = document.getElementById("canvas").getBoundingClientRect();
  return [camera.scale, camera.x + left, camera.y + top];
}"""


class Driver:
    """One page in one tab."""

    def __init__(self, tab, port, service, routes=None):
        self.tab, self.port, self.service = tab, port, service
        self.faults = []
        tab.on("pageerror", lambda error: self.faults.append(str(error)))
        for path, answer in (routes or {}).items():
            tab.route(path, answer)
        tab.goto(f"http://127.0.0.1:{port}/")
        tab.wait_for_selector("#app[data-ready]")

    def give(self, *names, body=None, mime="image/png"):
        """Chooses files; pictures unless a body says otherwise."""
        content = picture((40, 60, 90), self.service.size) if body is None else body
        self.tab.set_input_files("#files", [{"name": name, "mimeType": mime, "buffer": content} for name in names])

    def row(self, number):
        return self.tab.locator(f"#pictures li:nth-child({number})")

    def wait_for(self, number, state):
        self.tab.wait_for_selector(f"#pictures li:nth-child({number})[data-state={state}]", timeout=15000)

    def read(self):
        return self.tab.evaluate(READ)

    def at(self, x, y):
        """Where a point of the picture is on the screen."""
        scale, left, top = self.tab.evaluate(CAMERA)
        return left + x * scale, top + y * scale

    def click(self, x, y, **how):
        self.tab.mouse.click(*self.at(x, y), **how)

    def drag(self, start, *ways):
        self.tab.mouse.move(*self.at(*start))
        self.tab.mouse.down()
        for way in ways:
            self.tab.mouse.move(*self.at(*way), steps=3)
        self.tab.mouse.up()

    def press(self, *keys):
        for key in keys:
            self.tab.keyboard.press(key)

    def text(self, selector):
        return self.tab.locator(selector).inner_text()

    def areas(self):
        """Area by object, as the table shows it."""
        rows = self.tab.locator("#rows tr[data-id]").all_inner_texts()
        return {int(cells[0]): cells[2] for cells in (row.split("\t") for row in rows)}


@contextlib.contextmanager
def opened(browser, service=None, routes=None, **options):
    """The page of a service of fakes; a fault in any of its scripts fails the test."""
    service = service or PageService()
    with served_page(service) as port, contextlib.closing(browser.new_context(locale="en", **options)) as context:
        driver = Driver(context.new_page(), port, service, routes)
        yield driver
        assert driver.faults == []


@contextlib.contextmanager
def with_objects(browser, **options):
    """The same with one picture that has been through the model."""
    with opened(browser, **options) as page:
        page.give("a.png")
        page.wait_for(1, "done")
        page.tab.wait_for_selector("#rows tr[data-id]")
        yield page
