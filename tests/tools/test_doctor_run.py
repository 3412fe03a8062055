"""The whole doctor: record, verdict, exit code, events, fix script, terminal, and a Python with nothing installed."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from doctor_fakes import NVRM, FakeNvml, FakePackages, fake_machine, healthy_root, write
from rich.console import Console

import hotlap
from hotlap.base.errors import ConfigError, StorageError, UnknownName
from hotlap.cli.main import run as command
from hotlap.cli.show_doctor import show_doctor
from hotlap.records.run import load_record
from hotlap.tools.doctor import DoctorConfig, Unkept, doctor, fix_script, shelf
from hotlap.tools.doctor.finding import Finding, Fix, failed, passed, warned
from hotlap.tools.doctor.nvml_facts import NvmlFacts
from hotlap.tools.doctor.registry import GROUPS, load_checks
from hotlap.tools.doctor.run import Runner


class ToldRunner(Runner):
    """Probes answer as told, at once; those not named pass."""

    def __init__(self, **findings: Finding) -> None:
        super().__init__()
        self.findings = {name.replace("_", "-"): finding for name, finding in findings.items()}
        self.asked: list[str] = []

    def run(self, name, timeout_s):
        self.asked.append(name)
        return self.findings.get(name, passed("as told"))

    def facts(self, name, kind, timeout_s):
        return None, "no answer within 0 s"


def examine_all(tmp_path, machine, runner=None, **settings):
    config = DoctorConfig(runs=tmp_path / "runs", **settings)
    return doctor(config, machine=machine, runner=runner or ToldRunner())


def no_card(tmp_path):
    write(tmp_path, {"etc/os-release": "ID=debian\n", "proc/meminfo": "MemTotal: 9000000 kB\n"})
    (tmp_path / "dev/shm").mkdir(parents=True)
    return fake_machine(tmp_path, nvml=NvmlFacts(reason="NVML Shared Library Not Found"))


def test_a_machine_without_a_card_is_usable_and_its_record_is_saved(tmp_path):
    record = examine_all(tmp_path, no_card(tmp_path))
    assert record.verdict.exit_code == 0
    assert record.kind == "doctor"
    assert record.status == "complete"
    gpu = [check for check in record.checks if check.group == "gpu"]
    assert len(gpu) > 10
    assert {(check.status, check.observed) for check in gpu} == {("SKIP", "no NVIDIA card here")}
    again = load_record(Path(record.path))
    assert again.checks == record.checks
    assert Path(record.path).parent.parent == tmp_path / "runs/doctor"


def test_a_healthy_card_runs_every_probe(tmp_path):
    runner = ToldRunner()
    record = examine_all(tmp_path, fake_machine(tmp_path), runner)
    assert {"cublas", "cudnn", "cufft", "cusolver", "cusparse", "nccl", "pinned-memory", "amp-step", "cuda-graph",
            "gpu-compile", "allocator", "tf32", "kernel-launch"} <= set(runner.asked)  # fmt: skip
    assert runner.asked.index("cuda-start") < runner.asked.index("kernel-launch") < runner.asked.index("cublas")
    assert not any(name.startswith("ceilings") for name in runner.asked)
    assert record.verdict.exit_code == 0


def test_a_driver_mismatch_is_exit_code_4_and_the_probes_behind_it_are_not_run(tmp_path):
    healthy_root(tmp_path)
    write(tmp_path, {"proc/driver/nvidia/version": NVRM.format("575.64.03")})
    machine = fake_machine(tmp_path, library=FakeNvml(init_error="Driver/library version mismatch"))
    runner = ToldRunner(cuda_start=failed("CUDA error 804", Fix(say="See driver-match")))
    record = examine_all(tmp_path, machine, runner)
    assert record.verdict.exit_code == 4
    assert "driver-match" in record.verdict.headline
    assert any(line.startswith("driver-match: kernel module 575.64.03") for line in record.verdict.lines)
    assert "cublas" not in runner.asked
    assert next(c for c in record.checks if c.name == "cublas").observed == "needs cuda-start, which did not pass"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"environ": {"CUDA_VISIBLE_DEVICES": ""}}, "CUDA_VISIBLE_DEVICES hides every card"),
        ({"packages": FakePackages({"torch": "2.15.0"}, cuda=None)}, "this torch has no CUDA in it; see torch-build"),
        ({"packages": FakePackages({})}, "torch is not installed"),
    ],
)
def test_gpu_probes_are_skipped_with_the_reason(tmp_path, changes, reason):
    record = examine_all(tmp_path, fake_machine(tmp_path, **changes))
    assert {check.observed for check in record.checks if check.group == "gpu"} == {reason}


def test_events_count_every_check(tmp_path):
    events = []
    doctor(DoctorConfig(runs=tmp_path / "runs"), events.append, machine=no_card(tmp_path), runner=ToldRunner())
    assert events[0].kind == "start"
    assert events[-1].kind == "finish"
    steps = [event for event in events if event.kind == "advance"]
    assert [event.done for event in steps] == list(range(1, int(events[0].total) + 1))


def test_only_runs_what_is_named_with_what_it_needs(tmp_path):
    record = examine_all(tmp_path, fake_machine(tmp_path), only=("cublas", "host"))
    names = [check.name for check in record.checks]
    assert {"cublas", "kernel-launch", "cuda-start", "torch-import", "disk", "thread-settings"} <= set(names)
    assert "cudnn" not in names
    assert "driver-match" not in names


def test_an_unknown_check_is_named(tmp_path):
    with pytest.raises(UnknownName, match=r"unknown check 'cublass' in only\. Did you mean 'cublas'"):
        examine_all(tmp_path, no_card(tmp_path), only=("cublass",))


@pytest.mark.parametrize("limit", [0, math.inf])
def test_a_time_limit_of_nothing_or_none_is_refused(tmp_path, limit):
    with pytest.raises(ConfigError, match=f"timeout_s = {limit} is not valid"):
        examine_all(tmp_path, no_card(tmp_path), timeout_s=limit)


def test_measured_ceilings_go_into_the_record_and_the_cache(tmp_path):
    found = {
        "kind": "cpu", "device": "Test CPU", "key": "Test-CPU_torch-2.15", "torch": "2.15", "measured_at": "now",
        "ceilings": [{"quantity": "copy", "unit": "GB/s", "values": [10.0, 12.0, 11.0]}],
    }  # fmt: skip
    runner = ToldRunner(ceilings_cpu=passed("copy 11 GB/s", ceilings=found))
    record = examine_all(tmp_path, no_card(tmp_path), runner, measure=True)
    assert record.extra["ceilings"]["cpu"]["ceilings"][0]["values"] == [10.0, 12.0, 11.0]
    cached = Path(os.environ["XDG_CACHE_HOME"]) / "hotlap/ceilings/Test-CPU_torch-2.15.json"
    assert json.loads(cached.read_text())["device"] == "Test CPU"
    assert "ceilings" not in next(c for c in record.checks if c.name == "ceilings-cpu").data


def test_a_check_that_breaks_is_a_warning_and_stops_no_other(tmp_path):
    machine = fake_machine(tmp_path, affinity=None)  # makes the checks that read the affinity raise
    record = examine_all(tmp_path, machine)
    broken = next(check for check in record.checks if check.name == "numa")
    assert broken.status == "WARN"
    assert "the check failed with TypeError" in broken.observed
    assert next(check for check in record.checks if check.name == "pcie-link").status == "PASS"


def test_an_interrupted_examination_leaves_what_it_found(tmp_path):
    class Impatient(ToldRunner):
        def run(self, name, timeout_s):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        examine_all(tmp_path, no_card(tmp_path), Impatient())
    (file,) = (tmp_path / "runs").glob("doctor/*/record.json")
    record = load_record(file)
    assert record.status == "interrupted"
    assert "driver-match" in {check.name for check in record.checks}


@pytest.mark.parametrize("there", [False, True])
def test_a_full_disk_costs_the_record_but_no_finding(tmp_path, monkeypatch, there):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    runs = tmp_path / "runs"
    if there:
        (runs / "other").mkdir(parents=True)
    monkeypatch.setattr("hotlap.records.run.os.fsync", full)
    with pytest.raises(
        Unkept, match=r"record could not be written: cannot write '.*record\.json': No space left"
    ) as told:
        examine_all(tmp_path, no_card(tmp_path))
    assert told.value.exit_code == 4
    assert told.value.record.status == "complete" and len(told.value.record.checks) > 20
    assert [path.name for path in tmp_path.glob("runs/*")] == ["other"] * there and runs.exists() == there


def test_a_disk_that_is_full_only_at_first_still_gets_the_record(tmp_path, monkeypatch):
    real, calls = shelf.save, []

    def full_at_first(record, folder):
        calls.append(record.status)
        if len(calls) == 1:
            raise StorageError("cannot write it")
        return real(record, folder)

    monkeypatch.setattr(shelf, "save", full_at_first)
    record = examine_all(tmp_path, no_card(tmp_path))
    assert calls == ["running", "complete"] and load_record(Path(record.path)).checks == record.checks
    assert len(list((tmp_path / "runs/doctor").iterdir())) == 1


def test_on_a_full_disk_the_command_prints_its_findings_before_the_error(tmp_path, monkeypatch, capsys):
    def full(record, folder):
        raise StorageError("cannot write it: No space left on device", remedy="Free some space")

    monkeypatch.setattr(shelf, "save", full)
    arguments = ["doctor", "--only", "disk", "--runs", str(tmp_path / "runs")]
    assert command(arguments) == 4
    told = capsys.readouterr()
    assert "disk" in told.out and "Record: " not in told.out
    assert "the record could not be written: cannot write it: No space left on device. Free some space." in told.err
    assert command([*arguments, "--json"]) == 4
    assert json.loads(capsys.readouterr().out)["checks"] and not (tmp_path / "runs").exists()


def test_every_check_says_why_and_has_a_fitting_name():
    for spec in load_checks()[0].values():
        assert spec.why.endswith("."), spec.name
        assert spec.name == spec.name.lower().replace("_", "-")
        assert spec.group in GROUPS
        assert (spec.facts is None) != (spec.probe is None)


def test_the_documentation_lists_every_check_and_no_other():
    page = Path(__file__).parents[2] / "docs/doctor.md"
    rows = [line.split("|")[1].strip(" `") for line in page.read_text().splitlines() if line.startswith("| `")]
    assert sorted(rows) == sorted(load_checks()[0])


def test_the_fix_script_holds_the_commands_and_runs_none(tmp_path):
    runner = ToldRunner(
        cudnn=failed("CUDNN_STATUS_NOT_INITIALIZED", Fix(commands=("pip install --force-reinstall torch",)))
    )
    machine = fake_machine(tmp_path, library=FakeNvml("570.10.01", nvmlDeviceGetPersistenceMode=0))
    write(tmp_path, {"proc/driver/nvidia/version": NVRM.format("570.10.01")})
    script = fix_script(examine_all(tmp_path, machine, runner))
    lines = script.splitlines()
    assert lines[0] == "#!/bin/sh"
    assert "hotlap ran none of this" in script
    assert "uv pip install --torch-backend=cu128 --reinstall-package torch torch" in lines
    assert "pip install --force-reinstall torch" in lines
    assert "sudo systemctl enable --now nvidia-persistenced" in lines
    assert lines.index("pip install uv") < lines.index("pip install --force-reinstall torch")
    # A restart is never a line that runs.
    assert not any(line.lstrip().startswith("sudo reboot") for line in lines)
    assert subprocess.run(["sh", "-n"], input=script, text=True, capture_output=True, timeout=20).returncode == 0


def test_in_a_container_the_hosts_commands_are_commented_out(tmp_path):
    write(tmp_path, {".dockerenv": "", "etc/os-release": "ID=ubuntu\n"})
    machine = fake_machine(tmp_path, environ={"NVIDIA_VISIBLE_DEVICES": "all"}, nvml=NvmlFacts(reason="none"))
    script = fix_script(examine_all(tmp_path, machine))
    assert "# On the host, outside this container:" in script
    assert "\n# sudo apt-get install -y nvidia-container-toolkit\n" in script
    assert "\n# docker run --gpus all ...\n" in script


def test_a_fix_script_with_nothing_to_fix_says_so(tmp_path):
    record = examine_all(tmp_path, fake_machine(tmp_path), only=("driver", "card"))
    assert "Nothing to put right" in fix_script(record)


def test_no_fix_names_a_registrys_host(tmp_path):
    source = Path(hotlap.__file__).parent / "tools/doctor"
    for file in source.rglob("*.py"):
        assert "://" not in file.read_text(), file


def test_the_terminal_shows_status_reason_and_fix(tmp_path):
    runner = ToldRunner(
        cublas=failed("fp32 is wrong", Fix(say="Exchange the card")), cufft=warned("slow", Fix(say="Wait"))
    )
    record = examine_all(tmp_path, fake_machine(tmp_path), runner)
    out = io.StringIO()
    show_doctor(record, Console(file=out, width=120, no_color=True))
    text = out.getvalue()
    assert "FAIL cublas" in text
    assert "why  Every linear layer runs in cuBLAS." in text
    assert "fix  Exchange the card" in text
    assert "PASS cudnn" in text
    assert "1 FAIL" in text.splitlines()[-2]
    assert record.path in text


def test_skips_for_one_reason_share_a_line(tmp_path):
    out = io.StringIO()
    show_doctor(examine_all(tmp_path, no_card(tmp_path)), Console(file=out, width=200, no_color=True))
    (line,) = [line for line in out.getvalue().splitlines() if "no NVIDIA card here (cuda-start" in line]
    assert "14 checks" in line


BARE = """
import sys
from pathlib import Path
from hotlap.tools.doctor import DoctorConfig, doctor
record = doctor(DoctorConfig(runs=Path(sys.argv[1]), only=("libraries", "cpu", "driver", "container", "card", "gpu")))
assert "torch" not in sys.modules
print(record.path)
sys.exit(record.verdict.exit_code)
"""


def test_a_python_with_nothing_installed_gets_a_record_and_exit_code_4(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True, timeout=120)
    source = Path(hotlap.__file__).resolve().parents[1]
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(source), "HOME": str(tmp_path)}
    command = [str(tmp_path / "bare/bin/python"), "-c", BARE, str(tmp_path / "runs")]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 4, done.stderr
    checks = {check.name: check for check in load_record(Path(done.stdout.strip())).checks}
    assert checks["torch-package"].status == "FAIL"
    assert "torch is not installed" in checks["torch-package"].observed
    assert "torch" in checks["torch-package"].fix
    assert checks["torch-import"].status == "FAIL"
    assert "No module named 'torch'" in checks["torch-import"].observed
    assert checks["torch-import"].fix == "pip install torch"
    assert checks["cpu-math"].status == "SKIP"
    assert checks["cpu-math"].observed == "needs torch-import, which did not pass"
