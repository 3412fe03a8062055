"""Probes: what becomes of one that crashes, hangs, babbles or errs, and the processor probes for real."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from doctor_fakes import exit_code

from hotlap.base.errors import RecordError
from hotlap.records.ceilings import Ceilings, device_key, read_ceilings, write_ceilings
from hotlap.records.codec import decode, encode
from hotlap.tools.doctor import registry, runner
from hotlap.tools.doctor.finding import passed
from hotlap.tools.doctor.probe import run_body
from hotlap.tools.doctor.probes import ceilings, cpu, gpu_start
from hotlap.tools.doctor.probes.compare import WrongNumber, agree
from hotlap.tools.doctor.probes.gpu_math import judge_twice
from hotlap.tools.doctor.probes.torch_build import judge_cudnn, judge_maps
from hotlap.tools.doctor.registry import load_checks
from hotlap.tools.doctor.remedies import remedy
from hotlap.tools.doctor.runner import Runner

FAULTS = """
import ctypes, json, os, subprocess, sys, time
name = sys.argv[1]
if name == "segfault":
    ctypes.string_at(0)
if name == "hang":
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    open(os.environ["FAULT_FILE"], "w").write(str(child.pid))
    time.sleep(600)
if name == "leaves":
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    open(os.environ["FAULT_FILE"], "w").write(str(child.pid))
    ctypes.string_at(0)
if name == "garbage":
    print("Segmented memory is great")
if name == "status":
    print(json.dumps({"status": "MAYBE", "observed": "x"}))
if name == "killed":
    os.kill(os.getpid(), 9)
if name == "library":
    sys.exit("ImportError: libcudnn.so.9: cannot open shared object file: No such file or directory")
if name == "notorch":
    sys.exit("ModuleNotFoundError: No module named 'torch'")
if name == "noisy":
    print("a library says hello")
    print(json.dumps({"status": "PASS", "observed": "fine"}))
"""


@pytest.fixture
def faulty(tmp_path):
    """A runner whose probes are the faults above."""
    (tmp_path / "faults.py").write_text(FAULTS)
    environ = {**os.environ, "PYTHONPATH": str(tmp_path), "FAULT_FILE": str(tmp_path / "pid")}
    with Runner(module="faults", environ=environ) as runner:
        yield runner


@pytest.mark.parametrize(
    ("name", "observed", "fix"),
    [
        ("segfault", "killed by SIGSEGV", "pip install --force-reinstall torch"),
        ("killed", "killed by SIGKILL", "sudo dmesg | grep -i oom"),
        ("garbage", "not a finding: 'Segmented memory is great'", "python -m hotlap.tools.doctor.probe garbage"),
        ("status", "not a finding", "python -m hotlap.tools.doctor.probe status"),
        ("library", "libcudnn.so.9", "pip install --force-reinstall torch"),
        ("notorch", "No module named 'torch'", "pip install torch"),
    ],
)
def test_a_broken_probe_is_a_fail_that_says_what_happened(faulty, name, observed, fix):
    finding = faulty.run(name, 30)
    assert finding.status == "FAIL"
    assert observed in finding.observed
    assert fix in finding.fix.text()
    assert exit_code("cublas", finding) == 4


def test_what_libraries_print_does_not_spoil_the_answer(faulty):
    assert faulty.run("noisy", 30) == passed("fine")


def test_a_hanging_probe_is_killed_with_all_it_started(faulty, tmp_path):
    begun = time.perf_counter()
    finding = faulty.run("hang", 2)
    assert time.perf_counter() - begun < 20
    assert finding.status == "FAIL"
    assert "no answer within 2 s" in finding.observed
    assert "--timeout-s 6" in finding.fix.text()
    assert _ends(int((tmp_path / "pid").read_text()))
    assert not faulty.live


def test_a_probe_that_crashes_beside_what_it_started_is_no_hanging_one(faulty, tmp_path):
    begun = time.perf_counter()
    finding = faulty.run("leaves", 40)
    assert time.perf_counter() - begun < 20
    assert finding.status == "FAIL" and "killed by SIGSEGV" in finding.observed
    assert _ends(int((tmp_path / "pid").read_text()))


def test_a_probe_that_cannot_be_killed_is_not_waited_for(faulty, monkeypatch):
    killed, kill = [], runner.kill_group
    monkeypatch.setattr(runner, "kill_group", killed.append)
    monkeypatch.setattr(runner, "GONE_S", 0.2)
    finding = faulty.run("hang", 2)
    assert finding.status == "FAIL" and finding.observed == "no answer within 2 s, and it cannot be killed"
    assert "Only a reboot ends it" in finding.fix.text()
    kill(killed[0])


def _ends(pid: int) -> bool:
    """Whether a process is gone, or will be soon."""
    deadline = time.monotonic() + 5
    while _runs(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not _runs(pid)


def _runs(pid: int) -> bool:
    """Whether a process is there and more than a corpse waiting for its parent."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_a_ratio_of_speeds_is_that_of_the_calls_that_nothing_disturbed():
    """Three of four calls of one of them wait for a busy machine."""
    calls = itertools.count()
    ratio = cpu.speed_over(lambda: time.sleep(0.05 if next(calls) % 4 else 0.004), lambda: time.sleep(0.002))
    assert 1.2 < ratio < 3


def test_facts_that_never_come_have_a_reason(faulty):
    assert faulty.facts("hang", dict, 1) == (None, "no answer within 1 s")
    facts, reason = faulty.facts("notorch", dict, 30)
    assert facts is None
    assert "status 1" in reason


def test_a_wrong_number_is_a_fail(monkeypatch):
    import torch

    def lying():
        return passed(agree("matmul", torch.full((3,), 1.5), torch.ones(3).double(), 1e-5))

    load_checks()
    monkeypatch.setitem(registry._SPECS, "lying", registry.Spec(name="lying", group="cpu", why="x", probe=lying))
    finding = run_body("lying")
    assert finding.status == "FAIL"
    assert "matmul is wrong: relative error 0.5 against float64, allowed 1e-05" in finding.observed


def test_not_a_number_is_wrong():
    import torch

    with pytest.raises(WrongNumber, match="relative error nan"):
        agree("x", torch.tensor([float("nan")]), torch.ones(1).double(), 1.0)


@pytest.mark.parametrize(
    ("message", "fix"),
    [
        ("CUDA error: no kernel image is available for execution on the device", "--torch-backend=auto"),
        ("CUDA unknown error - this may be due to an incorrectly set up environment", "sudo modprobe nvidia_uvm"),
        ("The NVIDIA driver on your system is too old (found version 12020)", "See driver-cuda"),
        ("RuntimeError: Found no NVIDIA driver on your system.", "See kernel-module"),
        ("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED", "unset LD_LIBRARY_PATH"),
        ("InvalidCxxCompiler: No working C++ compiler found", "sudo apt-get install -y g++"),
        ("fatal error: Python.h: No such file or directory", "sudo apt-get install -y python3-dev"),
        ("something new", "python -m hotlap.tools.doctor.probe cublas --verbose"),
    ],
)
def test_known_messages_have_their_remedy(message, fix):
    assert fix in remedy(message, "cublas").text()


@pytest.mark.parametrize(
    ("archs", "capability", "status", "words"),
    [
        (["sm_80", "sm_90"], (9, 0), "PASS", "runs sm_90"),
        (["sm_80"], (8, 6), "PASS", "runs sm_80"),
        (["sm_86"], (8, 0), "FAIL", "card sm_80"),
        (["sm_75", "sm_80"], (7, 0), "FAIL", "card sm_70"),
        (["sm_90a"], (9, 0), "PASS", "runs sm_90a"),
        (["sm_100a"], (10, 3), "FAIL", "card sm_103"),
        (["sm_100f"], (10, 3), "PASS", "runs sm_100f"),
        (["sm_80", "compute_80"], (12, 0), "WARN", "from PTX compute_80"),
        ([], (8, 0), "FAIL", "no code for any card"),
    ],
)
def test_arch_list_against_the_card(archs, capability, status, words):
    finding = gpu_start.judge_arch(archs, capability, "13.0")
    assert finding.status == status
    assert words in finding.observed
    assert exit_code("kernel-launch", finding) == (4 if status == "FAIL" else 0)
    assert bool(finding.fix.text()) == (status != "PASS")


def test_the_build_for_an_old_card_is_named():
    fix = gpu_start.judge_arch(["sm_75"], (6, 1), "13.0").fix.text()
    assert "--torch-backend=cu126" in fix
    assert "'torch>=2.11,<2.15'" in fix


def test_cusolver_that_fails_only_the_first_time_is_told():
    finding = judge_twice([RuntimeError("cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR"), "solve 1e-7"])
    assert finding.status == "WARN"
    assert "the first call failed (cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR)" in finding.observed
    assert "pip install --upgrade torch" in finding.fix.text()
    assert judge_twice([RuntimeError("a"), RuntimeError("b")]).status == "FAIL"
    assert judge_twice(["x", "y"]).status == "PASS"


def test_an_ignored_allocator_setting_is_told():
    asked = "expandable_segments:True"
    finding = gpu_start.judge_allocator(asked, {"expandable_segments": False}, False, "native")
    assert finding.status == "WARN"
    assert "expandable_segments:True is not in force" in finding.observed
    assert "export PYTORCH_CUDA_ALLOC_CONF='expandable_segments:True'" in finding.fix.commands
    assert gpu_start.judge_allocator(asked, {"expandable_segments": True}, True, "native").status == "PASS"
    assert gpu_start.judge_allocator("backend:cudaMallocAsync", {}, False, "native").status == "WARN"


def test_tf32_flags_against_the_numbers():
    good = {"ieee": 3e-7, "tf32": 3e-4}
    assert gpu_start.judge_tf32("matmul ieee", good, True, None).status == "PASS"
    forced = gpu_start.judge_tf32("matmul ieee", {"ieee": 3e-4, "tf32": 3e-4}, True, "1")
    assert forced.status == "FAIL"
    assert "NVIDIA_TF32_OVERRIDE=1" in forced.observed
    blocked = gpu_start.judge_tf32("matmul ieee", {"ieee": 3e-7, "tf32": 3e-7}, True, "0")
    assert blocked.status == "WARN"
    assert blocked.fix.commands == ("unset NVIDIA_TF32_OVERRIDE",)
    assert gpu_start.judge_tf32("matmul ieee", {"ieee": 3e-7, "tf32": 3e-7}, False, None).status == "PASS"
    unasked = gpu_start.judge_tf32("matmul ieee", {"ieee": 3e-7, "tf32": 3e-7}, True, None)
    assert "pip install --upgrade torch" in unasked.fix.text()


SITE = "/venv/lib/site-packages"


@pytest.mark.parametrize(
    ("paths", "status", "words"),
    [
        ((f"{SITE}/nvidia/cudnn/lib/libcudnn.so.9", "/usr/lib/libcuda.so.580.1"), "PASS", "libcudnn.so.9"),
        ((f"{SITE}/nvidia/libcudnn.so.9", "/opt/cuda/libcudnn.so.8"), "WARN", "loaded twice: cudnn"),
        (("/opt/cuda/lib64/libcublas.so.13",), "WARN", "from outside"),
        ((f"{SITE}/torch/lib/libgomp.so.1", f"{SITE}/x/libiomp5.so"), "WARN", "two OpenMP runtimes: gomp, iomp5"),
    ],
)
def test_loaded_libraries(paths, status, words):
    maps = "".join(f"7f0-7f1 r-xp 0 08:01 12 {path}\n7f1-7f2 rw-p 0 08:01 12 {path}\n" for path in paths)
    finding = judge_maps(maps + "7ffd-7ffe rw-p 0 00:00 0 [stack]\n", SITE)
    assert finding.status == status
    assert words in finding.observed


def test_another_cudnn_than_the_wheels_is_told():
    finding = judge_cudnn(passed("libcudnn.so.9"), 91900, "9.26.0.51")
    assert finding.status == "WARN"
    assert "cuDNN 9.19.0 answers, the wheel is 9.26.0.51" in finding.observed
    assert "unset LD_LIBRARY_PATH" in finding.fix.text()
    assert judge_cudnn(passed("libcudnn.so.9"), 92600, "9.26.0.51").status == "PASS"


@pytest.mark.parametrize(
    ("threads", "cores", "status", "words"),
    [(8, 8, "PASS", "8 threads"), (16, 8, "WARN", "physical cores or quota"), (32, 8, "WARN", "more threads than CPUs"),
     (1, 8, "WARN", "7 cores stay idle")],
)  # fmt: skip
def test_torchs_threads_against_the_cores(threads, cores, status, words):
    finding = cpu.judge_threads(threads, cores, 16, "")
    assert finding.status == status
    assert words in finding.observed
    assert (finding.fix.text() == "export OMP_NUM_THREADS=8") == (status == "WARN")


def test_bf16_is_judged_by_its_speed_and_the_processor():
    assert "choose fp32" in cpu.judge_bf16(0.4, False, "").observed
    assert cpu.judge_bf16(0.4, False, "").status == "PASS"
    assert cpu.judge_bf16(0.4, True, "").status == "WARN"
    assert "2.50x" in cpu.judge_bf16(2.5, True, "").observed


def test_the_processor_probe_runs_in_its_own_process():
    with Runner() as runner:
        finding = runner.run("cpu-math", 200)
    assert finding.status == "PASS", finding
    for word in ("matmul", "conv", "fft", "solve"):
        assert word in finding.observed


@pytest.mark.slow
def test_torch_compile_on_the_processor_with_and_without_a_compiler(tmp_path):
    bare = {name: value for name, value in os.environ.items() if name != "CXX"} | {"PATH": str(tmp_path)}
    # Side by side, because each spends most of its time in imports and in the compiler.
    with Runner() as whole, Runner(environ=bare) as without, ThreadPoolExecutor(2) as pool:
        built, refused = pool.map(lambda runner: runner.run("cpu-compile", 250), (whole, without))
    assert built.status == "PASS", built
    assert "kernel(s) built and run" in built.observed
    assert refused.status == "FAIL"
    assert "compiler" in refused.observed.lower()
    assert refused.fix.commands == ("sudo apt-get install -y g++",)


@pytest.mark.parametrize("name", ["torch-import", "loaded-libraries", "cpu-bf16", "disk"])
def test_probes_pass_here(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    finding = run_body(name)
    assert finding.status in ("PASS", "WARN"), finding
    assert finding.observed


def test_ceilings_of_the_processor_are_measured_and_cached(monkeypatch):
    monkeypatch.setattr(ceilings, "_MAX_REPEATS", 3)
    finding = ceilings.ceilings_cpu()
    measured: Ceilings = decode(Ceilings, finding.data["ceilings"])
    assert {(c.quantity, c.dtype) for c in measured.ceilings} >= {("copy", ""), ("matmul", "fp32"), ("matmul", "bf16")}
    assert all(len(c.values) >= 3 and c.median > 0 for c in measured.ceilings)
    path = write_ceilings(measured)
    assert Path(os.environ["XDG_CACHE_HOME"]) in path.parents
    assert encode(read_ceilings(measured.key)) == encode(measured)
    assert read_ceilings(device_key("another card", "2.15")) is None
    path.write_text("{")
    with pytest.raises(RecordError, match=r"ceilings file .* cannot be read"):
        read_ceilings(measured.key)


GPU_PROBES = [spec.name for spec in load_checks()[0].values() if spec.cuda]


@pytest.mark.gpu
@pytest.mark.parametrize("name", GPU_PROBES)
def test_gpu_probes_pass_on_a_card(name):
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    with Runner() as runner:
        finding = runner.run(name, 180)
    assert finding.status in ("PASS", "WARN"), finding
