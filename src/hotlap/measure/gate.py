"""The numeric gate: does this arm still give the right answer?

The judge is the same model in float64 on the CPU; beside it stands plain float32 on the CPU, whose own error says how
hard the problem is. Where the CPU would take long, the card that is judged may compute the float64, and must match
the CPU's float32. An arm passes when its relative error is at most twice (three times in half precision) that of plain
float32 plus what its number format costs. Where that is too little, the problem may be to blame: the float64 model says
how far its own answer moves when weights, inputs and what every layer gives are rounded to a short format, and float32
programs with other last digits say how far right ones stray. Each gradient of a short format must point where the true
one does, or where rounding leaves it. Dropout is switched off on all sides; BatchNorm works as in use.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from hotlap.device.memory import release_memory
from hotlap.measure.arms import ArmSpec
from hotlap.measure.directions import Allowed, direction_checks
from hotlap.measure.distances import relative_error, total_error, trajectory_error, worst_error
from hotlap.measure.evidence import CARD, CPU, Evidence, Remembered
from hotlap.measure.session import Session, as_double, gradients_by_name, map_tensors, zero_dropout
from hotlap.records.measurement import Gate, GateCheck
from hotlap.targets import real_numbers
from hotlap.workload import Agreement, Workload

if TYPE_CHECKING:
    from torch import Tensor

Answer = TypeVar("Answer")

PLAIN = ArmSpec(device="cpu")

ERROR_FACTOR = {"fp32": 2.0, "tf32": 3.0, "bf16": 3.0, "fp16": 3.0}
"""How many times the error of plain float32 on the CPU an arm may make, before its number format's own share."""
OUTPUT_SHARE = {"fp32": 1e-4, "tf32": 8e-3, "fp16": 8e-3, "bf16": 6e-2}
"""Outputs. Right float32 programs differ by 1e-5 in layout and order of summation alone, while TF32 passing for float32
would show from 3e-4 on; the short formats may lose four bits: 16 times their roundoff of 2^-11 or 2^-8."""
GRADIENT_SHARE = {"fp32": 2e-3, "tf32": 2.4e-2, "fp16": 2.4e-2, "bf16": 1.9e-1}
"""All gradients together. The backward pass is some three times as deep, and batch statistics of few samples magnify:
two right float32 programs were seen 6e-4 apart on a U-Net."""
TENSOR_SLACK = 4
"""A single parameter's gradient may stray this much further than all of them together."""
LOSS_SHARE = {"fp32": 2e-4, "tf32": 2e-3, "fp16": 4e-3, "bf16": 2e-2}
"""Losses average many errors away, but every step starts from the last one's."""
DIGITS = {"tf32": 11, "fp16": 11, "bf16": 8}
"""Binary digits that the short formats keep of a number."""
ROUNDING_FACTOR = 1.5
"""An arm may be so much further off than rounding to its format, layer by layer, moves the exact answer: it also rounds
between layers and within them. Right ones in bfloat16 were seen 1.0 (unet) to 1.34 times as far (resunet-small). A deep
network is that sensitive at its start: in 11 digits the gradients of a fresh ResNet-50 move by three quarters of
themselves, in 8 digits by more than themselves, whoever computes them."""
NUDGES = 4
"""Programs with other last digits that are asked before an arm is called wrong. Five steps of a fresh ResNet-18 magnify
the last digit of a weight so much that right programs end from 0.0007 to 0.007 of the loss away from float64: one of
them alone is no yardstick."""
MOST_MOVED = {"outputs": 0.1, "gradients": 0.9, "worst gradient": 2.0, "loss trajectory": 0.1}
"""However sensitive the problem is, outputs and losses must be near the truth, and gradients of float32 nearer to it
than none at all. Those of short formats are asked for their directions."""
MOST_MOVED_TRAINING = 0.5
"""Outputs in training: nobody uses them, and bfloat16 moves those of fresh networks by up to 0.18 (MobileNet v2)."""
MOST_HALVINGS = 20
"""A step whose gradients overflow in fp16 is made anew at half the loss scale, as trainings do, at most so often."""
MAX_DRIFT = 1e-6
"""Two builds in float64 agree to some 1e-16, and to 1e-9 where the problem is very ill-conditioned. Two in float32 on
the same CPU mostly agree in every digit."""
NEAR = 1e-3
"""Float32 this near to float64 is of the same weights and inputs."""
SLOW_STEP_S = 0.2
"""Where a step of plain float32 takes the CPU longer, one in float64 is left to a card, if there is one to judge: CPUs
have fast convolutions for float32 alone, and the rounding of every layer comes on top."""
LONG_PASS_S = 1.0
"""A pass on the CPU that took so long is not run once more to be timed: what begins slowly matters little in it."""
GRADIENTS = ("gradients", "worst gradient")
NOT_FINITE = "plain float32 is not finite there, so that nothing can be compared; predict() and loss() should be finite"

NOT_NEAR = (
    "plain float32 itself is {plain:.2g} away from float64, so that nothing can be compared; noise that predict() "
    "draws is other noise in float64, and belongs into make_batch()"
)
ROUNDING = "rounding every layer to"
IN_FLOAT64 = "in float64, the numeric gate's reference"


class GateKeeper:
    """The float64 truth and the float32 yardstick of one workload, computed once, and the arms judged by them."""

    def __init__(
        self,
        workload: Workload,
        *,
        mode: str,
        batch: int,
        steps: int,
        seed: int,
        files: Mapping[str, Path] | None = None,
        kept: Path | None = None,
        card: ArmSpec | None = None,
        tell: Callable[[], None] = lambda: None,
    ) -> None:
        """``files`` says where the forms of arms such as cpu:onnx lie, by the arm's name.

        ``kept`` is a folder in which the references lie, if another process has computed them for the same workload.
        ``card`` is the plain arm of a card that may compute in float64 what would take the CPU long.
        ``tell`` is called after every step: whoever waits can tell long work from a process that hangs.
        """
        self.workload, self.mode, self.batch, self.steps, self.seed = workload, mode, batch, steps, seed
        self.files, self._card, self._tell = files or {}, card, tell
        self._remembered = Remembered(kept)
        self._refer()
        if kept is not None and not self.drift <= MAX_DRIFT:  # another workload was remembered, or it never is the same
            self._remembered.forget()
            self._remembered = Remembered(None)
            self._refer()
        self._moved: dict[str, Evidence] = {}
        self._nudged: list[Evidence] = []

    def _refer(self) -> None:
        """The truth, the yardstick, and how far a build of now is from the truth."""
        self.yardstick = self._remembered.get("yardstick", lambda: self._gather(self._session(PLAIN)))
        self.truth = self._remembered.get("truth", self._exact)
        self.drift = self._drift()

    def _exact(self) -> Evidence:
        """Float64; a card's counts only where it agrees with the CPU's float32, so that no card is its own witness."""
        if self._card is not None and self.yardstick.step_s >= SLOW_STEP_S:
            try:
                found = self._gather(self._session(self._card, double=True))
            except Exception:  # noqa: BLE001 - too little memory, or a kernel without float64: the CPU can do it
                found = None
            if found is not None and self._is_believed(found):
                return found
            release_memory()
        try:
            return self._gather(self._session(PLAIN, double=True))
        except Exception as error:
            error.add_note(IN_FLOAT64)  # float32 has run, so that it is not the input
            raise

    def _is_believed(self, found: Evidence) -> bool:
        """Whether a card's float64 is as near to the CPU's float32 as a float32 arm must be to the truth.

        Later losses are not asked for: right programs part there.
        """
        plain = self.yardstick
        if not relative_error(plain.outputs, found.outputs) <= OUTPUT_SHARE["fp32"]:
            return False
        if self.mode != "train":
            return True
        if set(plain.gradients) != set(found.gradients):
            return False
        near = total_error(plain.gradients, found.gradients) <= GRADIENT_SHARE["fp32"]
        return near and trajectory_error(plain.losses[:1], found.losses[:1]) <= LOSS_SHARE["fp32"]

    def _drift(self) -> float:
        """How far a build of now is from the one that is referred to. Float64 takes long, and is asked only where
        float32 does not give the same numbers again, or gave numbers of its own from the start.
        """
        again = relative_error(self._outputs(self._session(PLAIN)), self.yardstick.outputs)
        same = again <= MAX_DRIFT and relative_error(self.yardstick.outputs, self.truth.outputs) <= NEAR
        if same or NEAR < again < math.inf:
            return again
        return relative_error(self._outputs(self._session(self._exact_arm, double=True)), self.truth.outputs)

    @property
    def _exact_arm(self) -> ArmSpec:
        """The arm whose float64 is the truth."""
        return self._card if self._card is not None and self.truth.where == CARD else PLAIN

    def judge(self, spec: ArmSpec) -> Gate:
        """Whether ``spec`` agrees with the truth in outputs, task metric and, for training, gradients and losses."""
        began = time.perf_counter()
        got = self.yardstick if spec == PLAIN else self._gather(self._session(spec))
        checks = self._repeat_checks() + self._output_checks(spec, got)
        if self.mode == "train":
            checks += self._gradient_checks(spec, got)
            checks.append(self._loss_check(spec, got))
        training = f", {self.steps} training steps" if self.mode == "train" else ""
        return Gate(
            arm=spec.name,
            passed=all(check.passed for check in checks),
            checks=checks,
            reference=f"float64 on the {self.truth.where}, batch {self.batch}{training}",
            seconds=time.perf_counter() - began,
            batch=self.batch,
            step_s=got.step_s,
        )

    def _session(self, spec: ArmSpec, *, double: bool = False) -> Session:
        file = self.files.get(spec.name)
        session = Session(self.workload, spec, mode=self.mode, batch=self.batch, seed=self.seed, file=file)
        zero_dropout(session.plain_model)
        if double:
            session.plain_model.double()
            session.batches = [as_double(b) for b in session.batches]
        return session

    def _gather(self, session: Session, num_steps: int = 0) -> Evidence:
        """Outputs and gradients from fresh weights, then losses, all of the same compiled or recorded graph."""
        where = CPU if session.device.type == "cpu" else CARD
        outputs, took = self._seconds(lambda: self._outputs(session))
        if self.mode != "train":
            if not (session.spec == PLAIN and took >= LONG_PASS_S):
                took = self._seconds(lambda: session.run(session.batches[0]).cpu())[1]
            return Evidence(outputs, {}, [], took, where)
        first = self._seconds(partial(_settled, session, 0))
        gradients = gradients_by_name(session.plain_model)  # the optimizer's step took a loss scale out of them
        steps = [first, *(self._seconds(partial(_settled, session, n)) for n in range(1, num_steps or self.steps))]
        return Evidence(outputs, gradients, [loss for loss, _ in steps], min(seconds for _, seconds in steps), where)

    def _seconds(self, step: Callable[[], Answer]) -> tuple[Answer, float]:
        """What a step answered, and how long that took."""
        began = time.perf_counter()
        answer = step()
        took = time.perf_counter() - began
        self._tell()
        return answer, took

    def _outputs(self, session: Session) -> Tensor:
        first = session.batches[0]
        if self.mode != "train":
            return real_numbers(session.run(first)).double().cpu()
        with session.autocast():
            return real_numbers(self.workload.predict(session.model, first).detach()).double().cpu()

    def _repeat_checks(self) -> list[GateCheck]:
        """A red check if the workload is not the same twice, for then the yardstick's error would excuse any other."""
        if self.drift <= MAX_DRIFT or not bool(self.truth.outputs.isfinite().all()):
            return []
        detail = "two builds of it differ; weights and noise must come from torch's generators, which are seeded"
        return [GateCheck(name="same twice", error=self.drift, allowed=MAX_DRIFT, passed=False, detail=detail)]

    def _rounded(self, spec: ArmSpec, num_steps: int = 1, number: int = 0) -> Evidence:
        """The truth from numbers that are rounded to the arm's number format, layer by layer, and nothing else.

        From the second ``number`` on weights are shaken by up to half a digit before: equally right, and other losses.
        """
        digits = DIGITS[spec.precision]
        name = f"short-{digits}-{num_steps}-{number}"
        if name not in self._moved:
            made = self._remembered.get(name, lambda: self._gather(self._short(digits, number), num_steps))
            self._moved[name] = made
        return self._moved[name]

    def _short(self, digits: int, number: int = 0) -> Session:
        import torch

        session = self._session(self._exact_arm, double=True)
        chance = torch.Generator().manual_seed(number)
        for parameter in filter(torch.is_floating_point, session.plain_model.parameters()):
            shaken = parameter.data
            if number:
                by = torch.rand(shaken.shape, generator=chance, dtype=torch.float64).to(shaken.device) - 0.5
                shaken = shaken * (1 + by * 2.0**-digits)
            parameter.data = rounded(shaken, digits)
        change = partial(rounded, digits=digits)
        session.batches = [map_tensors(b, lambda t: change(t) if t.is_floating_point() else t) for b in session.batches]
        for layer in session.plain_model.modules():
            if not any(True for _ in layer.children()):
                layer.register_forward_hook(lambda _layer, _asked, given: map_tensors(given, partial(_stored, digits)))
        return session

    def _check(
        self,
        name: str,
        spec: ArmSpec,
        got: Evidence,
        error_of: Callable[[Evidence], float],
        share: float,
        detail: str = "",
    ) -> GateCheck:
        error, plain = error_of(got), self._plain_error(error_of)
        if not math.isfinite(error_of(self.yardstick)):
            detail = f"{detail}; {NOT_FINITE}" if detail else NOT_FINITE
        allowed = ERROR_FACTOR[spec.precision] * plain + share
        if name == "outputs" and plain > MOST_MOVED[name]:  # gradients and losses may be next to nothing by nature
            allowed = MOST_MOVED[name]
            detail = NOT_NEAR.format(plain=plain)
        elif not error <= allowed and math.isfinite(error):
            short = spec.precision in DIGITS
            more, note = self._by_rounding(name, spec, error, error_of) if short else self._by_nudges(error, error_of)
            allowed = max(allowed, min(more, self._most_moved(name, short=short)))
            detail = f"{detail}; {note}" if detail else note
        return GateCheck(name=name, error=error, allowed=allowed, passed=error <= allowed, detail=detail)

    def _plain_error(self, error_of: Callable[[Evidence], float]) -> float:
        """That of plain float32; none where it is not finite, for it would excuse any other."""
        error = error_of(self.yardstick)
        return error if math.isfinite(error) else 0.0

    def _most_moved(self, name: str, *, short: bool) -> float:
        if short and name in GRADIENTS:
            return math.inf
        return MOST_MOVED_TRAINING if short and name == "outputs" and self.mode == "train" else MOST_MOVED[name]

    def _by_rounding(
        self, name: str, spec: ArmSpec, error: float, error_of: Callable[[Evidence], float]
    ) -> tuple[float, str]:
        """What a short format may lose of a problem that rounding alone moves far, and the finding in words."""
        if name != "loss trajectory":
            moved = error_of(self._rounded(spec))
        else:  # one lucky program is no yardstick, see NUDGES
            moved = 0.0
            for number in range(NUDGES):
                moved = max(moved, error_of(self._rounded(spec, self.steps, number)))
                if ROUNDING_FACTOR * moved >= error:
                    break
        return ROUNDING_FACTOR * moved, f"{ROUNDING} {spec.precision} alone moves it by {moved:.2g}"

    def _by_nudges(self, error: float, error_of: Callable[[Evidence], float]) -> tuple[float, str]:
        """What float32 may lose of a problem in which its last digit matters, and the finding in words."""
        most = self._plain_error(error_of)
        for number in range(NUDGES):
            if ERROR_FACTOR["fp32"] * most >= error:
                break  # each further one takes as long as an arm
            if number == len(self._nudged):
                self._nudged.append(self._remembered.get(f"nudge-{number}", partial(self._nudge, number)))
            most = max(most, error_of(self._nudged[number]))
        return ERROR_FACTOR["fp32"] * most, f"weights with other last digits alone move float32 by {most:.2g}"

    def _nudge(self, number: int) -> Evidence:
        """Plain float32 from weights that are, at random, the next larger or smaller numbers."""
        import torch

        session = self._session(PLAIN)
        generator = torch.Generator().manual_seed(number)
        for parameter in filter(torch.is_floating_point, session.plain_model.parameters()):
            up = torch.randint(0, 2, parameter.shape, generator=generator).bool()
            towards = torch.where(up, math.inf, -math.inf).to(parameter.dtype)
            parameter.data = torch.nextafter(parameter.data, towards)
        return self._gather(session)

    def _output_checks(self, spec: ArmSpec, got: Evidence) -> list[GateCheck]:
        error, plain = (relative_error(e.outputs, self.truth.outputs) for e in (got, self.yardstick))
        most = MOST_MOVED["outputs"]
        lost = not math.isfinite(error) or (error > most and most < plain < math.inf)  # outputs alone say why
        agreements = [] if lost else self._agreements(spec, got)
        return [
            self._check(
                "outputs",
                spec,
                got,
                lambda e: relative_error(e.outputs, self.truth.outputs),
                OUTPUT_SHARE[spec.precision],
            ),
            *(
                GateCheck(
                    name=agreement.name,
                    error=1 - agreement.value,
                    allowed=1 - agreement.at_least,
                    passed=agreement.passed,
                    detail=f"{agreement.value:.5f}, at least {agreement.at_least:g}",
                )
                for agreement in agreements
            ),
        ]

    def _agreements(self, spec: ArmSpec, got: Evidence) -> list[Agreement]:
        """The task's own terms. In training they are not asked for what rounding alone takes from fresh weights."""
        found = self.workload.compare(got.outputs, self.truth.outputs)
        if self.mode != "train" or spec.precision not in DIGITS or all(agreement.passed for agreement in found):
            return found
        rounded = self.workload.compare(self._rounded(spec).outputs, self.truth.outputs)
        lost = {agreement.name for agreement in rounded if not agreement.passed}
        return [agreement for agreement in found if agreement.passed or agreement.name not in lost]

    def _gradient_checks(self, spec: ArmSpec, got: Evidence) -> list[GateCheck]:
        truth = self.truth.gradients
        missing = sorted(set(truth) ^ set(got.gradients))
        if missing:
            detail = f"gradients present on one side only: {', '.join(missing[:5])}"
            return [GateCheck(name="gradients", error=math.inf, allowed=0.0, passed=False, detail=detail)]
        _, worst = worst_error(got.gradients, truth)
        share = GRADIENT_SHARE[spec.precision]
        checks = [
            self._check("gradients", spec, got, lambda e: total_error(e.gradients, truth), share),
            self._check(
                "worst gradient", spec, got, lambda e: worst_error(e.gradients, truth)[0], TENSOR_SLACK * share, worst
            ),
        ]
        return checks + (self._direction_checks(spec, got) if spec.precision in DIGITS else [])

    def _direction_checks(self, spec: ArmSpec, got: Evidence) -> list[GateCheck]:
        """Where each gradient points: as float32's do, within the format's share, or else as rounding leaves them."""
        truth, plain, share = self.truth.gradients, self.yardstick.gradients, GRADIENT_SHARE[spec.precision]
        if any(not bool(gradient.isfinite().all()) for gradient in got.gradients.values()):
            return []  # the other checks say so
        near = Allowed(ERROR_FACTOR[spec.precision], share, size=ROUNDING_FACTOR)
        found = direction_checks(got.gradients, truth, plain, plain, near, "float32")
        if all(check.passed for check in found):
            return found
        moved, far = self._rounded(spec).gradients, Allowed(ROUNDING_FACTOR, share, size=ROUNDING_FACTOR)
        return direction_checks(got.gradients, truth, plain, moved, far, f"{ROUNDING} {spec.precision} leaves")

    def _loss_check(self, spec: ArmSpec, got: Evidence) -> GateCheck:
        detail = f"loss after {self.steps} steps {got.losses[-1]:.6g}, float64 {self.truth.losses[-1]:.6g}"
        share = LOSS_SHARE[spec.precision]
        return self._check(
            "loss trajectory", spec, got, lambda e: trajectory_error(e.losses, self.truth.losses), share, detail
        )


def _settled(session: Session, number: int) -> float:
    """The loss of a training step that counts; one whose gradients overflow changes the loss scale alone."""
    batch, scaler = session.batches[number % len(session.batches)], session.scaler
    for _ in range(MOST_HALVINGS if scaler is not None else 0):
        assert scaler is not None
        scale = scaler.get_scale()
        loss = float(session.run(batch))
        if scaler.get_scale() >= scale:
            return loss
    return float(session.run(batch))


def rounded(tensor: Tensor, digits: int) -> Tensor:
    """The numbers with so many binary digits each, as a shorter format would keep them, in the format they have."""
    import torch

    mantissa, exponent = torch.frexp(tensor)
    return torch.ldexp((mantissa * 2**digits).round() / 2**digits, exponent)


def _stored(digits: int, tensor: Tensor) -> Tensor:
    """What is left of a layer's answer that is kept in so many digits, and of the gradient that comes back to it."""
    if not tensor.is_floating_point():
        return tensor
    exact = tensor.detach()
    kept = tensor + (rounded(exact, digits) - exact)
    if kept.requires_grad:
        kept.register_hook(partial(rounded, digits=digits))
    return kept
