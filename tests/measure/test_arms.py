"""The spelling of arms, there and back, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotlap.base.errors import UsageError
from hotlap.measure.arms import COMPILE_MODES, SDPA, ArmSpec, cpu_candidates, parse_arm, refuse_batch

compiles = st.sampled_from(["", *COMPILE_MODES])
cpu_arms = st.builds(
    ArmSpec,
    device=st.just("cpu"),
    precision=st.sampled_from(["fp32", "bf16"]),
    channels_last=st.booleans(),
    compile=compiles,
    threads=st.integers(0, 256),
    batch=st.integers(0, 4096),
    folded=st.booleans(),
    fused=st.booleans(),
    padded=st.booleans(),
    shuffled=st.booleans(),
)
cuda_arms = st.builds(
    ArmSpec,
    device=st.just("cuda"),
    index=st.integers(0, 15),
    precision=st.sampled_from(["fp32", "tf32", "bf16", "fp16"]),
    channels_last=st.booleans(),
    compile=compiles,
    cudnn_benchmark=st.booleans(),
    fused=st.booleans(),
    sdpa=st.sampled_from(["", *SDPA]),
) | st.builds(ArmSpec, device=st.just("cuda"), graph=st.just(True), compile=st.sampled_from(["", "default"]))


@given(cpu_arms | cuda_arms | st.just(ArmSpec(device="cpu", tuned=True)))
def test_a_name_spells_the_arm_it_came_from(spec):
    assert parse_arm(spec.name) == spec


@given(cpu_arms | cuda_arms, st.randoms())
def test_the_order_of_options_does_not_matter(spec, rng):
    place, _, options = spec.name.rpartition(":")
    if "+" not in options:
        place, options = spec.name, ""
    words = options.split("+") if options else []
    rng.shuffle(words)
    assert parse_arm(place + (":" + "+".join(words) if words else "")).name == spec.name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("cpu", "cpu"),
        ("cuda:0", "cuda"),
        ("cuda:1:bf16", "cuda:1:bf16"),
        (" cpu:fp32 ", "cpu"),
        ("cpu:compile=default", "cpu:compile"),
        ("cuda:channels_last+bf16", "cuda:bf16+channels_last"),
        ("cpu:", "cpu"),
        ("cpu:threads=2", "cpu:threads=2"),
        ("cuda:batch=32+bf16", "cuda:bf16+batch=32"),
        ("cpu:onnx+threads=2", "cpu:threads=2+onnx"),
        ("cuda:aoti+bf16", "cuda:bf16+aoti"),
    ],
)
def test_equal_arms_have_one_name(text, name):
    assert parse_arm(text).name == name


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gpu", "arm 'gpu' does not start with a device"),
        ("", "arm '' does not start with a device"),
        ("cuda0", "arm 'cuda0'"),
        ("cpu:bf61", "unknown option 'bf61' in arm 'cpu:bf61'. Did you mean 'bf16'"),
        ("cpu:bf16=1", "unknown option 'bf16=1'"),
        ("cpu:compile=fast", "compile='fast' in arm 'cpu:compile=fast' is not a mode"),
        ("cpu:threads=0", "threads='0'"),
        ("cpu:batch=-4", "batch='-4'"),
        ("cpu:threads=many", "threads='many'"),
        ("cpu:tf32", "tf32 works on cuda only"),
        ("cpu:graph", "graph works on cuda only"),
        ("cuda:graph+compile=reduce-overhead", "records graphs itself"),
        ("cuda:sdpa=flsh", "sdpa='flsh' in arm 'cuda:sdpa=flsh' is not known. Did you mean 'flash'"),
        ("cpu:fp16", "fp16 works on cuda only"),
        ("cpu:cudnn_benchmark", "cudnn_benchmark works on cuda only"),
        ("cuda:threads=2", "threads works on cpu only"),
        ("cuda:tuned", "tuned works on cpu only"),
        ("cpu:tuned+bf16", "tuned stands alone"),
        ("cpu:1", "cpu has no index"),
        ("cuda:bf16+fp16", "precision cannot be both 'bf16' and 'fp16'"),
        ("cpu:onnx+aoti", "form cannot be both 'onnx' and 'aoti'"),
        ("cpu:aoti+compile", "compile has no meaning for aoti"),
        ("cuda:graph+exported", "graph has no meaning for exported"),
        ("cpu:channels_last+onnx", "channels_last has no meaning for onnx"),
    ],
)
def test_what_would_silently_do_nothing_is_refused(text, words):
    with pytest.raises(UsageError) as caught:
        parse_arm(text)
    assert words in str(caught.value)
    assert caught.value.exit_code == 2


def test_the_race_tries_what_can_matter_on_this_machine():
    def names(**about):
        return [spec.name for spec in cpu_candidates(**about)]

    assert names(has_convolutions=False, fast_bf16=False, can_compile=False) == ["cpu"]
    assert names(has_convolutions=True, fast_bf16=True, can_compile=False) == [
        "cpu",
        "cpu:channels_last",
        "cpu:bf16",
        "cpu:bf16+channels_last",
    ]
    assert len(names(has_convolutions=True, fast_bf16=True, can_compile=True)) == 8


def test_an_arm_with_its_own_batch_is_refused_where_a_flag_sets_it():
    with pytest.raises(UsageError, match=r"arm 'cuda:batch=32': batch=32 works in a bench only.*--batch"):
        refuse_batch(parse_arm("cuda:batch=32"), "--batch")
