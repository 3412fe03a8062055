"""How the page's files are served: under which rules, as what kind, and never stale."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi")
from fastapi import FastAPI
from starlette.testclient import TestClient

from hotlap.web.page import STATIC, add_page


@pytest.fixture
def client():
    app = FastAPI()
    add_page(app)
    return TestClient(app)


def test_scripts_come_from_the_service_only(client):
    headers = client.get("/").headers
    rules = dict(rule.split(" ", 1) for rule in headers["content-security-policy"].split("; "))
    assert rules["default-src"] == "'self'"
    assert "script-src" not in rules, "scripts are as default-src says"
    assert (rules["frame-ancestors"], rules["object-src"], rules["base-uri"]) == ("'none'",) * 3
    assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    ("path", "kind"),
    [("js/main.js", "text/javascript"), ("css/page.css", "text/css"), ("lang/zh.json", "application/json"),
     ("icons.svg", "image/svg+xml")],
)  # fmt: skip
def test_files_are_of_their_kind_and_asked_for_again(client, path, kind):
    answer = client.get(f"/static/{path}")
    assert answer.headers["content-type"].partition(";")[0] == kind
    assert answer.headers["cache-control"] == "no-cache"
    again = client.get(f"/static/{path}", headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_everything_that_the_page_names_is_there(client):
    names = {line.split('"')[0] for line in (STATIC / "index.html").read_text(encoding="utf-8").split('="static/')[1:]}
    assert len(names) > 5
    for name in names:
        assert client.get(f"/static/{name.partition('#')[0]}").status_code == 200, name
        if "#" in name:
            assert f'id="{name.partition("#")[2]}"' in (STATIC / "icons.svg").read_text(encoding="utf-8"), name
