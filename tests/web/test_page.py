"""The page in a real Chromium: what users do, from a dropped picture to the exported file."""

from __future__ import annotations

import json
import re
import zipfile
from types import SimpleNamespace

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
from page_driver import Driver, expect, opened, with_objects
from page_fakes import PageService, served_page
from web_fakes import bright_service, listening, picture

AREA_OF_2 = "#rows tr[data-id='2'] td:nth-child(3)"
HAND_OVER = """([event, field, name, body]) => {
  const carried = new DataTransfer();
  carried.items.add(new File([new Uint8Array(body)], name, { type: "image/png" }));
  const Kind = event === "drop" ? DragEvent : ClipboardEvent;
  document.body.dispatchEvent(new Kind(event, { bubbles: true, [field]: carried }));
}"""
NAMELESS = """() => [...document.querySelectorAll("button, input, select, canvas, [role], iframe")]
  .filter((element) => element.checkVisibility() && !element.closest("[aria-hidden=true]"))
  .filter((element) => !["alert", "status", "tabpanel"].includes(element.getAttribute("role")))
  .filter((element) => !(element.getAttribute("aria-label") || element.textContent.trim() || element.closest("label")))
  .map((element) => element.outerHTML.slice(0, 200))"""
OFF_SCREEN = """() => [document.documentElement, ...document.querySelectorAll("#bar button, #bar select, #bar input")]
  .filter((element) => element.checkVisibility())
  .filter((element) => Math.max(element.getBoundingClientRect().right, element.scrollWidth) > innerWidth + 1)
  .map((element) => element.id || element.tagName)"""
SQUEEZED = """() => [...document.querySelectorAll("#servicePanel > section")]
  .filter((element) => element.checkVisibility() && element.clientHeight < element.scrollHeight)
  .map((element) => element.innerText)"""
LOOSE_WORDS = """() => {
  const loose = [];
  const outside = (element) => !element.closest("[translate=no], option, noscript, style, script, title");
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const { data, parentElement } = walker.currentNode;
    if (/[\\p{L}]{2}/u.test(data) && outside(parentElement) && !data.includes("[[")) loose.push(data);
  }
  for (const element of document.body.querySelectorAll("[aria-label], [title], [placeholder]")) {
    for (const name of ["aria-label", "title", "placeholder"]) {
      const text = element.getAttribute(name) ?? "";
      if (/[\\p{L}]{2}/u.test(text) && outside(element) && !text.includes("[[")) loose.push(text);
    }
  }
  return loose;
}"""


def test_from_a_picture_to_its_polygons_an_edit_undo_and_export(chromium, no_hang, tmp_path):
    with with_objects(chromium) as page:
        assert page.areas() == {1: "400", 2: "900"}
        page.click(70, 20)
        page.press("e")
        page.drag((90, 40), (90, 60), (100, 50))
        moved = page.read()
        assert moved["objects"][1]["polygon"][2] == pytest.approx([100, 50], abs=1)
        expect(page.tab.locator(AREA_OF_2)).to_have_text(re.compile(r"1,[12]\d\d"))
        page.press("Control+z")
        assert page.read()["objects"][1]["polygon"][2] == [90, 40]
        expect(page.tab.locator(AREA_OF_2)).to_have_text("900")
        page.press("Control+y")
        page.press("Control+s")
        with page.tab.expect_download() as saved:
            page.tab.click("#formats button:has-text('GeoJSON')")
        saved.value.save_as(tmp_path / "saved.zip")
        assert saved.value.suggested_filename == "objects-geojson.zip"
        sent = json.loads(zipfile.ZipFile(tmp_path / "saved.zip").read("objects.json"))
    (exported,) = sent["pictures"]
    assert (exported["file"], exported["model"]) == ("a.png", "squares")
    assert (exported["width"], exported["height"]) == (200, 120)
    assert exported["objects"][1]["polygon"] == moved["objects"][1]["polygon"]


def test_a_file_that_is_no_picture_is_told_and_costs_no_other(chromium, no_hang):
    with opened(chromium) as page:
        page.give("bad.png", body=b"hello")
        page.give("good.png")
        page.wait_for(1, "failed")
        page.wait_for(2, "done")
        assert "bad.png is no picture." in page.text("#faultText")
        assert "bad.png is no picture." in page.text("#notices")
        page.tab.click("#retry")
        while [sent["name"] for path, sent in page.service.asked if path == "segment"].count("bad.png") < 2:
            page.tab.wait_for_timeout(20)
        page.wait_for(1, "failed")


def test_a_service_that_goes_away_and_comes_back_loses_nothing(chromium, no_hang):
    service = PageService()
    context = chromium.new_context(locale="en")
    with served_page(service) as port:
        page = Driver(context.new_page(), port, service)
        page.give("a.png")
        page.wait_for(1, "done")
    page.tab.wait_for_selector("#away[data-state=away]")
    page.click(20, 20)
    page.press("Delete")
    page.click(70, 20)
    page.press("e")
    page.drag((90, 40), (95, 45))
    page.give("b.png")
    page.wait_for(2, "waiting")
    page.tab.click("#tryNow")
    with served_page(service, port):
        page.wait_for(2, "done")
        expect(page.tab.locator(AREA_OF_2)).to_have_text(re.compile(r"1,0\d\d"))
        page.tab.wait_for_selector("#connection[data-state=ready]")
        assert page.tab.locator("#away").get_attribute("data-state") == "back"
    assert [thing["id"] for thing in page.read()["objects"]] == [2]
    assert page.faults == []
    context.close()


def test_a_full_queue_is_waited_for(chromium, no_hang):
    service = PageService()
    service.refuse = [(429, "The queue is full.", 1)]
    with opened(chromium, service) as page:
        page.give("a.png")
        page.wait_for(1, "held")
        assert "The queue is full." in page.text("#pictures li")
        page.wait_for(1, "done")


def test_a_token_is_asked_for_once_and_a_wrong_one_again(chromium, no_hang):
    service = PageService()
    service.token = "s3cret"
    with served_page(service) as port:
        context = chromium.new_context(locale="en")
        tab = context.new_page()
        tab.goto(f"http://127.0.0.1:{port}/")
        for token in ("wrong", "s3cret"):
            tab.fill("#token", token)
            tab.click("#tokenDialog button[value=ok]")
            if token == "wrong":
                tab.wait_for_selector("#tokenWrong:visible")
        tab.wait_for_selector("#app[data-ready]")
        expect(tab.locator("#model option")).to_have_count(2)
        assert not tab.locator("#tokenDialog").is_visible()
        context.close()


def test_objects_are_drawn_cut_holed_and_deleted(chromium, no_hang):
    with with_objects(chromium) as page:
        page.press("n")
        for corner in ((120, 60), (180, 60), (180, 110), (120, 110), (150, 20)):
            page.click(*corner)
        page.press("Control+z", "Enter")
        drawn = page.read()["objects"][-1]
        assert drawn["id"] == 3
        assert len(drawn["polygon"]) == 4, "the last corner was taken back"
        assert drawn["polygon"][2] == pytest.approx([180, 110], abs=1)
        page.press("o")
        for corner in ((140, 80), (150, 80), (150, 90)):
            page.click(*corner)
        page.press("Enter")
        assert len(page.read()["objects"][-1]["holes"]) == 1
        page.press("s")
        page.drag((100, 70), (195, 70))
        cut = page.read()
        assert [thing["id"] for thing in cut["objects"]] == [1, 2, 3, 4]
        assert [len(thing["holes"]) for thing in cut["objects"]] == [0, 0, 1, 0]
        page.press("d")
        page.click(20, 20)
        page.press("Control+z", "Control+z", "Control+z", "Control+z")
        assert [thing["id"] for thing in page.read()["objects"]] == [1, 2]


def test_an_outline_that_would_cross_itself_stays_as_it_was(chromium, no_hang):
    with with_objects(chromium) as page:
        page.click(70, 20)
        page.press("e")
        page.drag((90, 40), (40, 20))
        assert page.read()["objects"][1]["polygon"][2] == [90, 40]
        expect(page.tab.locator("#notices")).to_contain_text("may not cross itself")


def test_corners_can_be_reached_with_the_keyboard_alone(chromium, no_hang):
    with with_objects(chromium) as page:
        page.press("j", "e", "]", "]", "ArrowRight", "Shift+ArrowDown")
        assert page.read()["objects"][0]["polygon"] == [[10, 10], [31, 20], [30, 30], [10, 30]]
        page.press("i")
        assert page.read()["objects"][0]["polygon"][2] == [30.5, 25]
        page.press("Delete", "Delete")
        assert page.read()["objects"][0]["polygon"] == [[10, 10], [31, 20], [10, 30]]
        page.press("Escape", "Delete")
        assert [thing["id"] for thing in page.read()["objects"]] == [2]


def test_table_and_picture_point_at_each_other(chromium, no_hang):
    with with_objects(chromium) as page:
        page.tab.click("#head th:nth-child(3) button")
        expect(page.tab.locator("#rows tr[data-id]").first).to_have_attribute("data-id", "2")
        page.tab.hover("#rows tr[data-id='1']")
        assert page.read()["hovered"] == 1
        page.tab.mouse.move(*page.at(70, 20))
        expect(page.tab.locator("#rows tr[data-id='2']")).to_have_class("hovered")
        page.click(70, 20)
        expect(page.tab.locator("#rows tr[data-id='2']")).to_have_attribute("aria-selected", "true")
        page.tab.click("#rows tr[data-id='1']", modifiers=["Control"])
        assert sorted(page.read()["selected"]) == [1, 2]


def test_two_models_are_compared_side_by_side(chromium, no_hang):
    with with_objects(chromium) as page:
        page.press("c")
        expect(page.tab.locator("#agreed")).to_have_text(re.compile(r"same in both: 1 .*left: 1 .*right: 1"))
        page.tab.click("#takeOther")
        assert len(page.read()["objects"][1]["polygon"]) == 40
        expect(page.tab.locator("#said")).to_contain_text("wheels")
        page.press("Control+z")
        assert len(page.read()["objects"][1]["polygon"]) == 4
        expect(page.tab.locator("#said")).to_contain_text("squares")


def test_a_picture_that_the_other_model_refuses_is_sent_to_it_once(chromium, no_hang):
    with with_objects(chromium) as page:
        page.service.refuse = [(422, "wheels does not take it.", 0)] * 20
        page.press("c")
        expect(page.tab.locator("#otherSaid")).to_have_text("wheels does not take it.")
        page.tab.wait_for_timeout(500)
        assert len(page.service.refuse) == 19
        page.service.refuse = []
        page.press("c", "c")
        expect(page.tab.locator("#otherSaid")).to_contain_text("2 objects")


def test_objects_of_the_other_model_are_measured_in_the_scale_that_holds_when_they_are_taken(chromium, no_hang):
    with with_objects(chromium) as page:
        page.press("c")
        expect(page.tab.locator("#agreed")).to_contain_text("same in both")
        page.tab.fill("#scale", "0.5")
        page.tab.keyboard.press("Enter")
        page.tab.click("#takeOther")
        expect(page.tab.locator("#said")).to_contain_text("wheels")
        wheels = [len(thing["polygon"]) for thing in page.service.objects["wheels"]]
        while wheels not in [
            [len(thing["polygon"]) for thing in sent["objects"]]
            for path, sent in page.service.asked
            if path == "measure" and sent["um_per_px"] == 0.5
        ]:
            page.tab.wait_for_timeout(20)


def test_objects_and_edits_stay_when_another_run_fails(chromium, no_hang):
    with with_objects(chromium) as page:
        page.click(70, 20)
        page.press("Delete")
        page.service.refuse = [(504, "The deadline passed.", 0)]
        page.tab.click("#run")
        expect(page.tab.locator("#notices")).to_contain_text("The deadline passed.")
        expect(page.tab.locator("#pictures .why")).to_have_text("The deadline passed.")
        expect(page.tab.locator("#said")).to_contain_text("1 object")
        expect(page.tab.locator("#fault")).to_be_hidden()
        page.press("Control+s")
        expect(page.tab.locator("#export")).to_be_visible()


def test_the_slider_keeps_only_the_keys_that_move_it(chromium, no_hang):
    with with_objects(chromium) as page:
        page.tab.focus("#threshold")
        page.press("ArrowRight", "e")
        expect(page.tab.locator("#mode-edit")).to_have_attribute("aria-pressed", "true")
        assert float(page.tab.input_value("#threshold")) > 0.5


def test_undo_brings_objects_back_from_a_run_that_gave_classes(chromium, no_hang):
    with with_objects(chromium) as page:
        plain = page.service.segment

        def classes(*given):
            told = plain(*given)
            del told["objects"]
            return {**told, "classes": [{"class": 1, "share": 0.5, "box": [0, 0, 9, 9]}]}

        page.service.segment = classes
        page.tab.click("#run")
        expect(page.tab.locator("#said")).to_contain_text("gives classes")
        page.press("Control+z")
        expect(page.tab.locator("#said")).to_contain_text("2 objects")
        page.press("Control+s")
        expect(page.tab.locator("#export")).to_be_visible()
        page.press("Escape", "Control+y")
        expect(page.tab.locator("#said")).to_contain_text("gives classes")


def test_two_tabs_keep_their_pictures_apart(chromium, no_hang):
    with opened(chromium) as first:
        second = Driver(first.tab.context.new_page(), first.port, first.service)
        for page, name in ((first, "a.png"), (second, "b.png")):
            page.give(name)
            page.wait_for(1, "done")
            page.tab.wait_for_selector("html[data-kept]")
        first.tab.reload()
        expect(first.tab.locator("#pictures .name")).to_have_text(["a.png", "b.png"])


def test_a_new_threshold_runs_again_unless_edits_would_go(chromium, no_hang):
    with with_objects(chromium) as page:
        page.tab.locator("#threshold").fill("0.3")
        expect(page.tab.locator("#rows tr[data-id]")).to_have_count(3)
        page.click(70, 20)
        page.press("Delete")
        page.tab.locator("#threshold").fill("0.6")
        expect(page.tab.locator("#notices")).to_contain_text("Your edits are kept")
        assert len(page.read()["objects"]) == 2
        page.tab.click("#run")
        expect(page.tab.locator("#said")).to_contain_text("0.60")
        page.press("Control+z")
        assert [thing["id"] for thing in page.read()["objects"]] == [1, 3]


def test_another_scale_measures_again_and_keeps_edits(chromium, no_hang):
    with with_objects(chromium) as page:
        page.click(20, 20)
        page.press("Delete")
        page.tab.fill("#scale", "0,5")
        page.tab.keyboard.press("Enter")
        expect(page.tab.locator("#head")).to_contain_text("area µm²")
        while not [sent for path, sent in page.service.asked if path == "measure" and sent["um_per_px"] == 0.5]:
            page.tab.wait_for_timeout(20)
        assert [thing["id"] for thing in page.read()["objects"]] == [2]
        page.tab.fill("#scale", "-1")
        page.tab.keyboard.press("Enter")
        expect(page.tab.locator("#notices")).to_contain_text("µm per px = -1")


def test_pictures_can_be_dropped_and_pasted(chromium, no_hang):
    with opened(chromium) as page:
        body = list(picture((40, 60, 90), page.service.size))
        for event, field, name in (("drop", "dataTransfer", "dropped.png"), ("paste", "clipboardData", "pasted.png")):
            page.tab.evaluate(HAND_OVER, [event, field, name, body])
        page.wait_for(1, "done")
        page.wait_for(2, "done")
        assert page.tab.locator("#pictures .name").all_inner_texts() == ["dropped.png", "pasted.png"]


def test_every_word_changes_with_the_language(chromium, no_hang):
    """With a table in which every word is bracketed, whatever is shown without brackets is in no table."""

    def bracketed(text):
        return {form: bracketed(one) for form, one in text.items()} if isinstance(text, dict) else f"[[{text}]]"

    def answer(route):
        route.fulfill(json={key: bracketed(text) for key, text in route.fetch().json().items()})

    with opened(chromium, routes={"**/lang/en.json": answer}) as page:
        tab = page.tab
        page.give("a.png", "b.png")
        page.wait_for(2, "done")
        page.give("c.png", body=b"bad")
        page.wait_for(3, "failed")
        page.press("c", "j", "Delete", "?")
        tab.click("#help [data-close]")
        page.press("Control+s")
        tab.wait_for_selector("#formats button")
        tab.click("#export [data-close]")
        tab.click("#tab-runs")
        tab.wait_for_selector("#runRows tr")
        tab.click("#tab-service")
        tab.wait_for_selector("#modelRows tr")
        devices = ["cuda:0 [[ready]]", "cuda:1 [[starting again]]", "cuda:2 [[failed: gone]]"]
        assert tab.locator("#devices li").all_inner_texts()[:3] == devices
        assert "[[" in page.text("#bar")
        assert tab.evaluate(LOOSE_WORDS) == []
        assert tab.evaluate(NAMELESS) == []
        tab.select_option("#language", "cs")
        expect(tab.locator("#tab-objects")).to_contain_text("Objekty")
        wide = tab.viewport_size
        tab.set_viewport_size({"width": 360, "height": 800})
        for language in ("de", "es"):
            tab.select_option("#language", language)
            expect(tab.locator("html")).to_have_attribute("lang", language)
            assert tab.evaluate(OFF_SCREEN) == []
        tab.set_viewport_size(wide)
        tab.select_option("#language", "zh")
        expect(tab.locator("html")).to_have_attribute("lang", "zh")
        expect(tab.locator("#tally")).to_contain_text("3 张图片")
        expect(tab.locator("#agreed")).not_to_contain_text("[[")
        assert "[[" not in tab.evaluate("() => document.body.innerText")
        tab.reload()
        expect(tab.locator("html")).to_have_attribute("lang", "zh")


def test_light_and_dark_follow_the_system_until_one_is_chosen(chromium, no_hang):
    paper = "() => getComputedStyle(document.body).backgroundColor"
    with opened(chromium, color_scheme="dark") as page:
        assert page.tab.evaluate(paper) == "rgb(15, 20, 25)"
        page.tab.emulate_media(color_scheme="light")
        assert page.tab.evaluate(paper) == "rgb(244, 246, 248)"
        page.tab.click("#theme")
        page.tab.emulate_media(color_scheme="dark")
        assert page.tab.evaluate(paper) == "rgb(244, 246, 248)", "light was chosen"
        page.tab.click("#theme")
        page.tab.emulate_media(color_scheme="light")
        assert page.tab.evaluate(paper) == "rgb(15, 20, 25)", "dark was chosen"


def test_pictures_and_edits_outlive_the_tab_until_they_are_removed(chromium, no_hang):
    with with_objects(chromium) as page:
        page.click(20, 20)
        page.press("Delete")
        page.tab.wait_for_selector("html[data-kept]", state="attached")
        page.tab.reload()
        page.wait_for(1, "edited")
        assert [thing["id"] for thing in page.read()["objects"]] == [2]
        expect(page.tab.locator(AREA_OF_2)).to_have_text("900")
        page.tab.click("#clear")
        page.tab.click("#clearDialog button[value=ok]")
        expect(page.tab.locator("#pictures li")).to_have_count(0)
        page.tab.reload()
        page.tab.wait_for_selector("#app[data-ready]")
        assert page.tab.locator("#pictures li").count() == 0


def test_runs_are_listed_and_a_report_is_opened(chromium, no_hang):
    with opened(chromium) as page:
        page.tab.click("#tab-runs")
        expect(page.tab.locator("#runRows tr")).to_have_count(2)
        page.tab.locator("#runRows button").first.click()
        heading = page.tab.frame_locator("#reportFrame iframe").locator("h1")
        expect(heading).to_have_text("The lap of unet")
        page.press("Escape")
        page.tab.click("#connection")
        expect(page.tab.locator("#devices")).to_contain_text("Card 9000")


def test_the_real_service_and_the_page_understand_each_other(chromium, no_hang):
    _, service = bright_service()
    context = chromium.new_context(locale="en")
    with listening(service) as (_, port):
        page = Driver(context.new_page(), port, SimpleNamespace(size=(8, 4)))
        page.give("a.png")
        page.wait_for(1, "done")
        expect(page.tab.locator("#classes button")).to_have_count(1)
        page.tab.click("#tab-service")
        expect(page.tab.locator("#modelRows")).to_contain_text("bright")
        page.give("bad.png", body=b"hello")
        page.wait_for(2, "failed")
        assert "bad.png" in page.text("#pictures li:nth-child(2) .why")
        context.close()
    assert page.faults == []


def test_a_phone_shows_the_picture_and_its_tools(chromium, no_hang):
    with with_objects(chromium, viewport={"width": 390, "height": 800}) as page:
        for tool in ("#canvas", "#mode-edit", "#exportButton", "#tab-objects"):
            expect(page.tab.locator(tool)).to_be_in_viewport()
        assert page.tab.evaluate("() => document.documentElement.scrollWidth <= innerWidth")
        page.tab.click("#tab-service")
        page.tab.wait_for_selector("#modelRows tr", state="attached")
        assert page.tab.evaluate(SQUEEZED) == []
