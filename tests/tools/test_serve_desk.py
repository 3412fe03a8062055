"""A real process that decodes and finishes: it gives what this process would give, and may die."""

from __future__ import annotations

import io
import json
import os
import platform
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

from hotlap.base.errors import ConfigError, DataError
from hotlap.measure.beside import NICER
from hotlap.measure.servable import ModelSpec, Signature, TensorSpec
from hotlap.tools.serve import ServeConfig
from hotlap.tools.serve.desk import LocalDesk, ProcessDesks
from hotlap.tools.serve.plan import make_servable, plan_desks

Image = pytest.importorskip("PIL.Image")
SPEC = ModelSpec(name="cells", target="cells", options={"size": 64})
MAPS = TensorSpec(name="output", dtype="float32", shape=(2, -1, -1), planes=("foreground", "core"))
SIGNATURE = Signature(inputs=(), outputs=(MAPS,), rows=1, arm="cpu")


FAULTS = """
import resource
from hotlap.device.kept_memory import keep_memory
from hotlap.measure.beside import LARGEST_KEPT, MOST_KEPT
import numpy as np

def picture():
    for size in (20, 6, 3, 12):
        kept = np.ones(size << 20, np.uint8)
        del kept

keep_memory(largest=LARGEST_KEPT, most=MOST_KEPT)
picture()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    picture()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_the_memory_of_one_picture_serves_the_next():
    environment = {**os.environ, "NUMPY_MADVISE_HUGEPAGE": "0", "MALLOC_ARENA_MAX": "1"}
    told = subprocess.run([sys.executable, "-c", FAULTS], env=environment, capture_output=True, text=True, check=True)
    assert int(told.stdout) < 500, "pages that the kernel had to bring; 2048 where nothing is said to the C library"


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_desk_answers_as_this_process_does_and_outlives_a_kill():
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(256, size=(40, 50), dtype=np.uint8)).save(out, "PNG")
    here, desks = LocalDesk({"cells": make_servable(SPEC)}), ProcessDesks(1, [SPEC], make_servable)
    try:
        desks.start()
        got = desks.decode("cells", out.getvalue(), {}, SIGNATURE)
        want = here.decode("cells", out.getvalue(), {}, SIGNATURE)
        assert torch.equal(got.rows[0], want.rows[0]) and got.facts == want.facts
        with pytest.raises(DataError, match=r"'b\.png' cannot be read"):
            desks.decode("cells", b"no picture", {"filename": "b.png"}, SIGNATURE)
        pid = desks.pids()[0]
        assert os.getpriority(os.PRIO_PROCESS, pid) == min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICER)
        maps = torch.rand(1, 2, 64, 64, generator=torch.Generator().manual_seed(0))
        os.kill(desks.pids()[0], signal.SIGKILL)
        answer = desks.finish("cells", (maps,), got.facts, {})
        assert json.loads(answer) == json.loads(here.finish("cells", (maps,), want.facts, {}))
        assert json.loads(answer)["objects"]
    finally:
        desks.stop()
    assert desks.pids() == []


def test_processes_are_taken_where_a_card_would_wait_for_outlines():
    heavy = [make_servable(SPEC)]
    light = [make_servable(ModelSpec(name="b", target="bilstm"))]
    assert plan_desks(ServeConfig(), ["cpu"], heavy) == 0
    assert plan_desks(ServeConfig(), ["cuda:0"], light) == 0
    assert plan_desks(ServeConfig(), ["cuda:0"], heavy) >= 1
    assert plan_desks(ServeConfig(desks=3), ["cpu"], light) == 3
    with pytest.raises(ConfigError, match="desks = -1"):
        ServeConfig(desks=-1)
