"""The README's figures follow from their samples: each is worked out again from the JSON file of its page."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean, median
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def stored(name: str) -> Any:
    return json.loads((ROOT / "results" / f"{name}_h200_202611.json").read_text())


def cells_of(words: str) -> list[str]:
    """The cells of the one row of the README's tables that begins with these words."""
    (row,) = [line for line in README.splitlines() if line.startswith(f"| {words}")]
    return [cell.strip().partition("](")[0].lstrip("[") for cell in row.strip("|").split("|")[1:]]


def cpu_vs_gpu() -> dict[str, list[str]]:
    rows = {row["row"]: row["record"] for row in stored("cpu_vs_gpu")["rows"]}
    names = {
        ("unet-infer", "cuda", 2): "unet infer, batch 16", ("unet-train", "cuda", 2): "unet train, batch 16 | 2",
        ("unet-train", "cuda:tf32", 2): "unet train, TF32", ("bilstm-infer", "cuda", 1): "bilstm infer",
        ("bilstm-train", "cuda", 1): "bilstm train, 64",
    }  # fmt: skip
    expected = {}
    for (row, arm, digits), words in names.items():
        times = {m: [median(x["values"]) for x in rows[row]["measurements"] if (x["arm"], x["quantity"]) == (m, "wall")]
                 for m in ("cpu", arm)}  # fmt: skip
        found = next(c for c in rows[row]["comparisons"] if (c["arm"], c["quantity"]) == (arm, "wall"))
        ratio = f"{found['ratio']:.{0 if found['ratio'] > 100 else 1}f}x"
        expected[words] = [f"{median(times['cpu']):,.0f}", f"{median(times[arm]):.{digits}f}", ratio]
    return expected


def tuned() -> dict[str, list[str]]:
    found = {row["row"]: row["configurations"] for row in stored("tuned_speed")["rows"]}
    large = stored("tuned_speed_unet")["answers"]

    def gains(times: dict[str, dict[str, float]]) -> list[str]:
        return [f"{one['value']:.1f}x" for one in times.values()]

    return {
        "unet train, batch 16 | 8": gains(found["unet-train"][2]["times_faster_than"]),
        "unet train, batch 256": gains(large["unet-train"][2]["times_the_samples_of"]),
        "unet infer, batch 256": gains(large["unet-infer"][2]["times_the_samples_of"]),
        "bilstm train, with": gains(found["bilstm-train"][3]["times_faster_than"]),
    }


def splats() -> dict[str, list[str]]:
    short, late = stored("splat_train")["jobs"], stored("splat_train_30k")["jobs"]
    late += [job for job in stored("splat_adam_30k")["jobs"] if (job["who"], job["config"]["adam"]) != ("ours", "auto")]
    seconds = [{who: mean(job["seconds"] for job in jobs if job["who"] == who) for who in ("ours", "gsplat")}
               for jobs in (short, late)]  # fmt: skip
    scenes = stored("splat_kernels")["results"]
    frames = [next(part["ms"] for part in scenes[name] if part["part"] == "forward+backward") for name in ("1M", "ply")]
    ours, plain = ([median(ms[way]) for ms in frames] for way in ("ours", "gsplat plain"))
    times = [median(b / a for a, b in zip(ms["ours"], ms["gsplat plain"], strict=True)) for ms in frames]
    card, cores = (job["seconds"] for job in stored("splat_m7")["jobs"])
    return {
        "a scene of 301": [f"{seconds[0]['ours']:.1f} s", f"gsplat 1.5.3: {seconds[0]['gsplat']:.1f} s",
                           f"{seconds[0]['gsplat'] / seconds[0]['ours']:.1f}x"],
        "the same at 980x545": [f"{seconds[1]['ours']:.0f} s", f"gsplat 1.5.3: {seconds[1]['gsplat']:.0f} s",
                                f"{seconds[1]['gsplat'] / seconds[1]['ours']:.1f}x"],
        "a frame with": [f"{ours[0]:.2f} ms; {ours[1]:.2f} ms", f"gsplat 1.5.3: {plain[0]:.2f} ms; {plain[1]:.2f} ms",
                         f"{times[0]:.1f}x; {times[1]:.1f}x"],
        "60 steps": [f"{1000 * card:.1f} ms", f"our own path on 16 CPU cores: {cores:.2f} s", f"{cores / card:.0f}x"],
    }  # fmt: skip


def networks() -> dict[str, list[str]]:
    expected = {}
    for words, extra in (("three networks", ("", "+kernels")), ("the same with", ("compile+", ""))):
        rates, plain, times = [], [], []
        for model in ("hrnet", "resunet-small", "ma-resunet"):
            form = f"{model}:cuda:bf16+channels_last+{extra[0]}cudnn_benchmark+graph{extra[1]}@8"
            eager, fast = (median(part["ms"]) for part in stored("segment_speed")["results"][form] if "ms" in part)
            rates.append(f"{1000 / fast:.0f}")
            plain.append(f"{1000 / eager:.0f}" if eager < 100 else f"{1000 / eager:.1f}")
            times.append(f"{eager / fast:.1f}x")
        expected[words] = [", ".join(rates), f"eager float32, one by one: {', '.join(plain)}", ", ".join(times)]
    arms = [stored(f"serve_http_{model}")["arms"] for model in ("hrnet", "unet")]
    rate = {name: [arm[name]["images_per_s"] for arm in arms] for name in ("hotlap", "litserve")}
    times = [f"{a / b:.1f}x" for a, b in zip(*rate.values(), strict=True)]
    mine, theirs = (", ".join(f"{one:.0f}" for one in rates) for rates in rate.values())
    return expected | {"JPEG in": [mine, f"LitServe: {theirs}", ", ".join(times)]}


def kernels() -> dict[str, list[str]]:
    lstm = stored("lstm_kernel")["results"]
    layer = {
        (way, row["precision"]): median(row["graph_ms"]) for way in ("cuda", "cudnn") for row in lstm[f"layer:{way}"]
    }
    ours, cudnn = ([layer[way, kind] for kind in ("float32", "float16")] for way in ("cuda", "cudnn"))
    cloud = {
        row["arm"]: median(row["ms"]) for row in stored("chamfer")["results"]["speed:8x10000x10000"] if "ms" in row
    }
    mesh = stored("mesh_speed")["results"]
    before, sample, after = (median(p["ms"]) for p in mesh["pp:kernels bf16+tf32, batch 64, graph"] if "ms" in p)
    plain, step = (median(mesh[part][0]["ms"]) for part in ("train:plain", "train:graph"))
    return {
        "an LSTM layer": [f"{ours[0]:.2f} ms; {ours[1]:.2f} ms", f"cuDNN: {cudnn[0]:.2f} ms; {cudnn[1]:.2f} ms",
                          f"{cudnn[0] / ours[0]:.1f}x; {cudnn[1] / ours[1]:.1f}x"],
        "Chamfer distance": [f"{cloud['ours']:.2f} ms, 5 MB", f"`torch.cdist`: {cloud['torch.cdist']:.1f} ms, 10 GB",
                             f"{cloud['torch.cdist'] / cloud['ours']:.0f}x"],
        "Pixel2Mesh++, three": [f"{sample:.2f} ms; {step:.2f} ms",
                                f"plain float32, alone: {min(before, after):.1f} ms; of 16: {plain:.1f} ms",
                                f"{min(before, after) / sample:.0f}x; {plain / step:.1f}x"],
    }  # fmt: skip


@pytest.mark.parametrize("table", [cpu_vs_gpu, tuned, splats, networks, kernels], ids=lambda table: table.__name__)
def test_figures_follow_from_their_samples(table):
    expected = table()
    told = {words: cells_of(words) for words in expected}
    shown = {
        words: [cell.partition(" [")[0] for cell in cells[-len(expected[words]) :]] for words, cells in told.items()
    }
    assert shown == expected
