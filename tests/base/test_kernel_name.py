"""Kernels' names, as a profile of a card has them."""

from __future__ import annotations

import pytest

from hotlap.base.kernel_name import kernel_label

COPY = (
    "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda(float)#1}"
)


@pytest.mark.parametrize(
    ("name", "label"),
    [
        (
            "void cutlass::Kernel2<cutlass_80_simt_sgemm_64x64_8x5_nn_align1>(cutlass_80_simt_sgemm::Params)",
            "cutlass_80_simt_sgemm_64x64_8x5_nn_align1",
        ),
        ("void cutlass::device_kernel<flash::Forward<int> >(flash::Forward<int>::Params)", "device_kernel"),
        ("void elemWiseRNNcell<float, float, (cudnnRNNMode_t)2>(int, int, bool, float const*)", "elemWiseRNNcell"),
        (
            f"void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<{COPY}>"
            f"(at::TensorIteratorBase&, {COPY} const&)::{{lambda(int)#1}}>(int, at::native::Other<{COPY}>)",
            "elementwise_kernel: direct_copy_kernel_cuda",
        ),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >"
            "(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)",
            "vectorized_elementwise_kernel: FillFunctor",
        ),
        (
            "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
            "TensorListMetadata<1>, at::native::(anonymous namespace)::BinaryOpScalarFunctor<float, 1, 1, 0>, "
            "std::multiplies<float>, float>(at::native::(anonymous namespace)::TensorListMetadata<1>, float)",
            "multi_tensor_apply_kernel: BinaryOpScalarFunctor, multiplies",
        ),
        ("void at::native::reduce_kernel<512, 1, int>(int)", "reduce_kernel"),
        ("void at::native::reduce_kernel<512", "reduce_kernel"),
        (
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
        ),
        ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
        ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pageable -> Device)"),
        ("aten::convolution", "aten::convolution"),
        ("idle: launch-bound", "idle: launch-bound"),
        ("", ""),
    ],
)
def test_a_kernel_is_called_by_what_it_does(name, label):
    assert kernel_label(name) == label
