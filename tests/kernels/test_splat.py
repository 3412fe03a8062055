"""Splatting: every implementation against the reference in float64, by outputs and gradients."""

from __future__ import annotations

import gc
import weakref
from dataclasses import fields, replace
from functools import cache

import pytest
import torch

from hotlap.base.errors import ConfigError, KernelUnavailable, ShapeError, UnknownName
from hotlap.kernels.agreement import disagreements, in_float64, outputs_and_grads
from hotlap.kernels.splat import reference
from hotlap.kernels.splat.cases import EVERYTHING, REAL, SMALL, UNDECIDED, SplatCase, as_splats, run_frame, undecided
from hotlap.kernels.splat.frame import MIN_ALPHA, TILE, Splats
from hotlap.kernels.splat.op import IMPLS, flat_view, splat, splat_choice, splat_frame
from hotlap.kernels.splat.reference import coverage, pixel_centers, project, sh_basis

CPU = torch.device("cpu")
KERNELS = [impl for impl in IMPLS if impl != "reference"]
NAMES = [field.name for field in fields(Splats)]


@pytest.fixture(autouse=True)
def one_thread():
    """Torch's threads wait for each other longer than pictures as small as these take."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@cache
def truth(case: SplatCase, device: torch.device):
    """What the reference draws in float64 and its gradients, and the pixels that rounding does not decide."""
    inputs = in_float64(case.make(device))
    decided = ~undecided(inputs, case.view, UNDECIDED[case.dtype])
    want = drawn_and_grads("reference", case, inputs, decided)
    with torch.no_grad():
        return want, reference.forward(as_splats(inputs), case.view), decided


def drawn_and_grads(impl: str, case: SplatCase, inputs, decided):
    """What is drawn and every gradient, with those on the screen, by name."""
    frames = []

    def draw(splats, view):
        frames.append(splat(splats, view, impl))
        if frames[-1].means2d.requires_grad:
            frames[-1].means2d.retain_grad()
        return frames[-1]

    found = outputs_and_grads(run_frame(draw, case.view, decided), inputs)
    on_screen = {
        "grad means2d": frames[0].means2d.grad,
        "grad means2d_abs": getattr(frames[0].means2d, "absgrad", None),
    }
    assert (on_screen["grad means2d_abs"] is None) == (not case.view.absgrad)
    return found | {name: grad for name, grad in on_screen.items() if grad is not None}


def skip_unless(impl: str, case: SplatCase, device: torch.device) -> None:
    try:
        splat_choice(as_splats(case.make(device)), case.view, impl)
    except KernelUnavailable as error:
        pytest.skip(str(error))


def check(case: SplatCase, impl: str, device: torch.device, truth_on: torch.device = CPU) -> None:
    skip_unless(impl, case, device)
    want, plain, decided = truth(case, truth_on)
    assert (~decided).float().mean() <= case.max_undecided
    got = drawn_and_grads(impl, case, case.make(device), decided)
    assert {tensor.dtype for tensor in got.values()} == {case.dtype}
    assert disagreements(got, want, case.tolerance) == {}
    with torch.no_grad():
        facts = splat(as_splats(case.make(device)), case.view, impl).facts
    named = {name: getattr(facts, name) for name in ("depths", "conics")}
    assert disagreements(named, {name: getattr(plain.facts, name) for name in named}, case.tolerance) == {}
    assert torch.equal(facts.radii.cpu() > 0, plain.facts.radii.cpu() > 0), "the same splats are drawn"
    assert ((facts.radii.cpu() - plain.facts.radii.cpu()).abs() <= 1).all(), (
        "rounded up, on either side of a whole number"
    )
    assert facts.radii.dtype == facts.tiles_per_splat.dtype == torch.int32


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.id)
def test_matches_reference(case, impl, device):
    check(case, impl, device)


@pytest.mark.gpu
@pytest.mark.parametrize("impl", [impl for impl in KERNELS if impl != "cpu"])
@pytest.mark.parametrize("few_tiles", [0, 1024])
@pytest.mark.parametrize("case", REAL, ids=lambda case: case.id)
def test_matches_reference_at_sizes_of_real_use(case, few_tiles, impl, monkeypatch):
    """With as many pixels a thread as in small pictures, and as in large ones."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    monkeypatch.setattr("hotlap.kernels.splat.cuda.FEW_TILES", few_tiles)
    check(case, impl, torch.device("cuda"), torch.device("cuda"))


@pytest.mark.parametrize("impl", KERNELS)
def test_deep_stacks_agree_too(impl, device):
    """More splats over each pixel than any other small case has, and many more than a tile's list in one batch."""
    options = {"raw": True, "depth": True}
    check(SplatCase(splats=1500, size=0.3, opacity=-3.5, max_undecided=0.25, options=options), impl, device)


PLAIN = SplatCase(splats=40, width=26, height=19, cameras=2, background=True, dtype=torch.float64)
DIFFERENCES = (
    replace(PLAIN, options=EVERYTHING),
    replace(PLAIN, far_out=True, options={"depth": True}),
    replace(PLAIN, channels=5, by_camera=True, options={"antialiased": True}),
)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("case", DIFFERENCES, ids=lambda case: case.id)
def test_the_reference_has_the_gradients_of_central_differences(case, name):
    """Along one random direction; 1e-5 is what a step of 1e-6 leaves of 16 digits, with room for curvature."""
    inputs = case.make(CPU)
    generator = torch.Generator().manual_seed(3)
    outputs = reference.forward(as_splats(inputs), case.view)
    weights = {
        n: torch.randn(getattr(outputs, n).shape, generator=generator, dtype=torch.float64)
        for n in ("colors", "alphas", "means2d")
    }
    direction = torch.randn(inputs[name].shape, generator=generator, dtype=torch.float64)
    moved = [as_splats(inputs | {name: inputs[name] + sign * 1e-6 * direction}) for sign in (1, -1)]
    with torch.no_grad():
        drawn = [reference.forward(splats, case.view) for splats in moved]
    totals = [sum((getattr(one, n) * weight).sum() for n, weight in weights.items()) for one in drawn]
    found = reference.backward(as_splats(inputs), case.view, outputs, *weights.values(), frozenset({name}))
    assert list(found) == [name]
    along = (found[name] * direction).sum()
    torch.testing.assert_close((totals[0] - totals[1]) / 2e-6, along, rtol=1e-5, atol=1e-5 * along.abs().item())


def test_the_reference_does_not_depend_on_how_many_pixels_it_takes_at_once(monkeypatch):
    case = replace(PLAIN, options=EVERYTHING)
    everywhere = torch.ones(2, 19, 26, dtype=torch.bool)
    whole = drawn_and_grads("reference", case, case.make(CPU), everywhere)
    monkeypatch.setattr(reference, "CHUNK", 40 * 100)
    parts = drawn_and_grads("reference", case, case.make(CPU), everywhere)
    assert disagreements(parts, whole, 1e-12) == {}


def test_the_harmonics_are_orthonormal_with_the_signs_of_splat_files():
    """On the sphere, by Gauss's quadrature in z and even steps around it, which are exact for such polynomials."""
    import numpy as np

    z, weight = (torch.from_numpy(array) for array in np.polynomial.legendre.leggauss(8))
    around = torch.arange(16, dtype=torch.float64) * (2 * torch.pi / 16)
    across = (1 - z * z).sqrt()[:, None]
    directions = torch.stack([across * around.cos(), across * around.sin(), z[:, None].expand(8, 16)], dim=-1)
    basis = sh_basis(directions.reshape(-1, 3), 3)
    area = (weight[:, None] * (2 * torch.pi / 16)).expand(8, 16).reshape(-1, 1)
    torch.testing.assert_close(basis.T @ (basis * area), torch.eye(16, dtype=torch.float64), rtol=0, atol=1e-12)
    x, y, z = torch.eye(3, dtype=torch.float64)
    signs = [sh_basis(d[None], 3)[0][k].sign().item() for d, k in ((y, 1), (z, 2), (x, 3), (z, 6), (x, 8), (z, 12))]
    assert signs == [-1, 1, -1, 1, 1, 1]
    assert [sh_basis(d[None], 3)[0][k].sign().item() for d, k in ((y, 9), (y, 11), (x, 13), (x, 15))] == [1, 1, 1, -1]


@pytest.mark.parametrize("impl", IMPLS)
def test_absolute_gradients_are_those_of_single_pixels_added_up(impl, device):
    case = SplatCase(splats=7, width=6, height=5, options={"absgrad": True})
    skip_unless(impl, case, device)
    splats = as_splats({n: None if t is None else t.requires_grad_() for n, t in case.make(device).items()})
    weights = torch.randn(1, 5, 6, 3, generator=torch.Generator().manual_seed(0)).to(device)

    def on_screen(weights):
        drawn = splat(splats, case.view, impl)
        drawn.means2d.retain_grad()
        drawn.colors.backward(weights)
        return drawn.means2d.grad, drawn.means2d.absgrad

    whole, absolute = on_screen(weights)
    single = []
    for pixel in range(30):
        only = torch.zeros_like(weights).view(30, 3)
        only[pixel] = weights.view(30, 3)[pixel]
        single.append(on_screen(only.view_as(weights))[0])
    torch.testing.assert_close(torch.stack(single).sum(0), whole, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(torch.stack(single).abs().sum(0), absolute, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("impl", KERNELS)
def test_a_splat_is_looked_at_in_every_tile_it_covers_and_few_others(impl, device):
    """Long thin splats: a box around one has many tiles that it does not reach."""
    case = SplatCase(splats=150, width=150, height=99, size=0.05)
    skip_unless(impl, case, device)
    inputs = case.make(device)
    inputs["scales"][:, 0] *= 12
    splats = as_splats(inputs)
    got = splat(splats, case.view, impl).facts.tiles_per_splat[0].cpu()
    exact = as_splats(in_float64({name: None if t is None else t.cpu() for name, t in inputs.items()}))
    screen, box = project(exact, case.view, 0, slice(None)), reference.forward(exact, case.view)
    centers = pixel_centers(case.view, screen.means2d)
    nothing = torch.zeros_like(screen.means2d)
    alphas = coverage(centers, screen.means2d, screen.conics, screen.opacities, nothing)[1]
    tile = (centers[:, 1] // TILE * 10 + centers[:, 0] // TILE).long()
    hits = torch.zeros(70, 150).index_add_(0, tile, (alphas > MIN_ALPHA * 1.001).float())
    covered = (hits > 0).sum(0)
    covered *= box.facts.radii[0].amax(1) > 0
    boxes = box.facts.tiles_per_splat[0]
    assert (covered <= got).all() and (got <= boxes).all()
    assert got.sum() < 1.15 * covered.sum() < 0.8 * boxes.sum(), "more only where no pixel's centre is reached"


def test_the_cpu_gives_the_same_bits_for_any_number_of_threads():
    pytest.importorskip("numba")
    case = SplatCase(splats=3000, width=120, height=90, size=0.05, background=True, options=EVERYTHING)
    found = []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        found.append(drawn_and_grads("cpu", case, case.make(CPU), torch.ones(1, 90, 120, dtype=torch.bool)))
    for other in found[1:]:
        assert [name for name in found[0] if not torch.equal(found[0][name], other[name])] == []


@pytest.mark.parametrize("impl", IMPLS)
def test_only_the_gradients_asked_for_are_made(impl, device):
    case = SplatCase(splats=9, background=True)
    skip_unless(impl, case, device)
    splats = as_splats(case.make(device))
    module = __import__(f"hotlap.kernels.splat.{impl}", fromlist=["backward"])
    drawn = module.forward(splats, case.view)
    ones = torch.ones_like(drawn.colors), torch.ones_like(drawn.alphas), None
    for needs in ({"means"}, {"backgrounds"}, {"means2d"}, {"viewmats", "colors"}):
        assert set(module.backward(splats, case.view, drawn, *ones, frozenset(needs))) == needs


@pytest.mark.parametrize("impl", IMPLS)
def test_a_frame_leaves_no_reference_cycle(impl, device):
    case = SplatCase(splats=9)
    skip_unless(impl, case, device)
    inputs = case.make(device)
    inputs["means"].requires_grad_()
    gc.collect()
    gc.disable()
    try:
        drawn = splat(as_splats(inputs), case.view, impl)
        gone = weakref.ref(drawn.colors)
        del drawn
        assert gone() is None
    finally:
        gc.enable()


def test_outputs_changed_in_place_are_noticed(device):
    case = SplatCase(splats=9)
    inputs = case.make(device)
    inputs["means"].requires_grad_()
    drawn = splat(as_splats(inputs), case.view)
    drawn.alphas.detach().mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        drawn.colors.sum().backward()


def test_the_operator_is_what_it_tells_the_compiler(device):
    """Its schema, the shapes that it claims without drawing, and that its gradients are registered as they must be."""
    case = SplatCase(splats=5, cameras=2, options=EVERYTHING)
    inputs = case.make(device) | {"backgrounds": None}
    tensors = [None if inputs[name] is None else inputs[name].requires_grad_() for name in NAMES]
    found = torch.library.opcheck(
        splat_frame,
        (*tensors, *flat_view(case.view), "auto"),
        test_utils=("test_schema", "test_faketensor", "test_autograd_registration"),
    )
    assert set(found.values()) == {"SUCCESS"}


def test_an_explicit_request_that_cannot_run_says_why():
    case = SplatCase(splats=2)
    on_meta = as_splats(case.make(torch.device("meta")))
    with pytest.raises(KernelUnavailable, match=r"impl='cpu' cannot run here \(cpu: the tensors are on meta\)"):
        splat(on_meta, case.view, "cpu")
    half = as_splats({n: None if t is None else t.half() for n, t in case.make(CPU).items()})
    with pytest.raises(KernelUnavailable, match=r"cpu: float16 is neither float32 nor float64"):
        splat(half, case.view, "cpu")
    with pytest.raises(UnknownName, match=r"unknown impl 'cpi'\. Did you mean 'cpu'"):
        splat(as_splats(case.make(CPU)), case.view, "cpi")


def test_without_numba_the_reference_draws_and_an_explicit_request_says_what_to_install(monkeypatch):
    from hotlap.kernels.splat import cpu

    monkeypatch.setattr(cpu, "has_numba", lambda: False)
    case = SplatCase(splats=2)
    choice = splat_choice(as_splats(case.make(CPU)), case.view)
    assert choice.impl == "reference" and "hotlap[splat]" in choice.against["cpu"]
    with pytest.raises(KernelUnavailable, match=r"numba is not installed: pip install 'hotlap\[splat\]'"):
        splat(as_splats(case.make(CPU)), case.view, "cpu")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"means": torch.zeros(5, 2)}, r"means must be \[N, 3\], got \[5, 2\]"),
        ({"quats": torch.zeros(4, 4)}, r"quats must be \[N, 4\], got \[4, 4\] \(bound: N=5\)"),
        ({"scales": torch.zeros(5)}, r"scales must be \[N, 3\], got \[5\]"),
        ({"opacities": torch.zeros(5, 1)}, r"opacities must be \[N\], got \[5, 1\]"),
        ({"viewmats": torch.zeros(4, 4)}, r"viewmats must be \[C, 4, 4\], got \[4, 4\]"),
        ({"Ks": torch.zeros(2, 3, 3)}, r"Ks must be \[C, 3, 3\], got \[2, 3, 3\] \(bound: N=5, C=1\)"),
        ({"colors": torch.zeros(2, 5, 3)}, r"colors must be \[C, N, D\], got \[2, 5, 3\]"),
        ({"colors": torch.zeros(3)}, r"colors must be \[N, D\], got \[3\]"),
        ({"backgrounds": torch.zeros(1, 4)}, r"backgrounds must be \[C, D\], got \[1, 4\]"),
        ({"viewmats": torch.zeros(0, 4, 4), "Ks": torch.zeros(0, 3, 3)}, r"viewmats has the shape \[0, 4, 4\]"),
    ],
)
def test_wrong_shapes_are_named(change, message):
    case = SplatCase(splats=5)
    with pytest.raises(ShapeError, match=message):
        splat(as_splats(case.make(CPU) | change), case.view)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scales": torch.zeros(5, 3, dtype=torch.float64)}, "scales is float64, means float32"),
        ({"colors": torch.zeros(5, 3, device="meta")}, "colors is on meta, means on cpu"),
    ],
)
def test_mixed_types_and_devices_are_named(change, message):
    case = SplatCase(splats=5)
    with pytest.raises(ConfigError, match=message):
        splat(as_splats(case.make(CPU) | change), case.view)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"sh_degree": 4}, ConfigError, r"sh_degree = 4 is not valid\. Expected None or 0 to 3"),
        ({"near": 3.0, "far": 2.0}, ConfigError, "near = 3 and far = 2 are not valid"),
        ({"near": 0.0}, ConfigError, "near = 0 and far"),
        ({"eps2d": -0.1}, ConfigError, r"eps2d = -0\.1 is not valid"),
        ({"radius_clip": float("nan")}, ConfigError, "radius_clip = nan is not valid"),
        ({"width": 0}, ConfigError, "width = 0 is too small"),
        ({"height": -1}, ConfigError, "height = -1 is too small"),
    ],
)
def test_wrong_options_are_named(options, error, message):
    sh = {"sh_degree": 3}
    case = SplatCase(splats=5, options=sh)
    with pytest.raises(error, match=message):
        splat(as_splats(case.make(CPU)), replace(case.view, **options))


def test_too_few_coefficients_are_counted():
    case = SplatCase(splats=5, options={"sh_degree": 3})
    inputs = case.make(CPU)
    few = inputs | {"colors": inputs["colors"][:, :9]}
    with pytest.raises(
        ShapeError, match=r"colors has 9 coefficients, too few for sh_degree = 3\. Expected at least 16"
    ):
        splat(as_splats(few), case.view)
