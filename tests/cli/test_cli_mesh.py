"""The verbs of meshes at the command line."""

from __future__ import annotations

import json

import numpy as np
import pytest

from hotlap.cli.main import run
from hotlap.data.mesh_file import Mesh, write_mesh


def test_views_of_a_folder_from_the_command_line(tmp_path, capsys):
    pytest.importorskip("PIL", reason="views are kept as pictures")
    (tmp_path / "things").mkdir()
    corners = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]], float)
    for name in ("a", "b"):
        write_mesh(
            tmp_path / "things" / f"{name}.ply",
            Mesh(vertices=corners, faces=np.array([[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]])),
        )
    words = ["mesh", "views", str(tmp_path / "things"), "--out", str(tmp_path / "out"), "--views", "1"]
    words += ["--points", "9", "--sheet", "0", "--supersample", "1"]
    assert run([*words, "--json", "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out)["names"] == ["a", "b"]
    assert run([*words, "--quiet"]) == 0
    assert "2 objects ready in" in capsys.readouterr().out
    assert run([*words, "--dry-run", "--quiet"]) == 0
    assert "supersample" in capsys.readouterr().out


def test_the_group_lists_its_verbs(capsys):
    assert run(["mesh"]) == 0
    told = capsys.readouterr().out
    assert all(verb in told for verb in ("views", "train", "predict", "eval"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["views", "gone", "--out", "x"], "folder 'gone' does not exist"),
        (["train", "gone"], "data = 'gone' is not a prepared folder"),
        (["eval", "gone"], "data = 'gone' is not a prepared folder"),
        (["predict", "a.png"], "no weights were given"),
        (["predict", "a.png", "--weights", "w.pt"], "no cameras were given"),
    ],
)
def test_wrong_requests_end_with_one_paragraph(words, said, tmp_path, monkeypatch, capsys):
    pytest.importorskip("PIL", reason="views are kept as pictures")
    monkeypatch.chdir(tmp_path)
    assert run(["mesh", *words, "--quiet"]) == 2
    assert said in capsys.readouterr().err
