"""What an operator or a kernel is for, read from its name."""

from __future__ import annotations

import re

CONVOLUTION, MATMUL, ATTENTION = "convolution", "matmul", "attention"
NORMALISATION, RECURRENT, POOLING = "normalisation", "recurrent", "pooling"
ELEMENTWISE, REDUCTION, INDEXING = "elementwise", "reduction", "indexing"
LOSS, OPTIMIZER, COPY = "loss", "optimizer", "memory copy"
SPLATTING, COMMUNICATION, OTHER = "splatting", "communication", "other"
CATEGORIES = (
    CONVOLUTION, MATMUL, ATTENTION, NORMALISATION, RECURRENT, POOLING, SPLATTING, ELEMENTWISE, REDUCTION, INDEXING,
    LOSS, OPTIMIZER, COPY, COMMUNICATION, OTHER,
)  # fmt: skip
WHOLE = (RECURRENT, ATTENTION, LOSS)
"""Made of smaller operators, whose backward operators are known only by the forward ones they belong to."""

_RULES = [
    (OPTIMIZER, r"optimizer\.|_fused_(adamw?|sgd|adagrad)|multi_tensor_apply|_amp_(foreach|update)"),
    (COMMUNICATION, r"nccl|c10d::|allreduce|all_reduce|all_gather|reduce_scatter|record_param_comms|gloo:"),
    (SPLATTING, r"^_Frame$|\b_FrameBackward$|hotlap::splat_|(project|blend)_(fwd|bwd)_kernel"),
    (ATTENTION, r"scaled_dot_product|flash_(attention|fwd|bwd)|efficient_attention|attention|fmha"),
    (RECURRENT, r"aten::(lstm|gru|rnn_|quantized_lstm)|_cudnn_rnn|cudnn.?rnn|mkldnn_?rnn|thnn_fused_(lstm|gru)"
                r"|_fused_(lstm|gru)_cell|lstm|rnn_(bp|ff)|persist_?rnn|elemwise.?lstm"),
    (LOSS, r"cross_entropy|nll_?loss|mse_?loss|l1_?loss|huber|kl_?div|ctc_?loss|binary_cross|bce|margin_loss|"
           r"triplet|hinge"),
    (CONVOLUTION, r"conv(olution)?(_|\d|$|transpose|overridable|backward|depthwise)|aten::.*convolution|implicit_gemm"
                  r"|convolve|fprop|dgrad|wgrad|winograd|xmma.*conv|nchwtonhwc|nhwctonchw|im2col|col2im|cudnn::cnn"),
    (NORMALISATION, r"batch_?norm|bn_(fw|bw)|layer_?norm|group_?norm|instance_?norm|rms_?norm|welford|renorm"),
    (POOLING, r"pool|upsample|interpolate|grid_sample|enlarge"),
    (MATMUL, r"aten::(mm|addmm|bmm|baddbmm|matmul|linear|addmv|mv|dot|einsum|addbmm)(_|\b)|(addmm|bmm|mm|linear|"
             r"baddbmm)backward|gemm|gemv|cublas|cutlass|nvjet|splitk|_tem_fused.*mm"),
    (INDEXING, r"embedding|index|gather|scatter|aten::(cat|stack|where|take|masked|roll|flip|repeat|tril|triu|sort|topk"
               r"|unique|nonzero)|catbackward|sort|radix|catarray"),
    (COPY, r"memcpy|memset|aten::(copy_|_to_copy|to|clone|contiguous|pin_memory|fill_|zero_|zeros|zeros_like|ones_like)"
           r"\b|direct_copy|copybackward|clonebackward|tocopybackward|fillfunctor"),
    (REDUCTION, r"aten::(sum|mean|max|min|amax|amin|argmax|argmin|std|var|norm|cumsum|cumprod|prod|softmax|_softmax"
                r"|log_softmax|_log_softmax|logsumexp|any|all|_softmax_backward.*|_log_softmax_backward.*)\b"
                r"|(sum|mean|softmax|max|min|amax|norm)backward|reduce_kernel|triton_(red|per)_|softmax"),
    (ELEMENTWISE, r"elementwise|triton_poi_|aten::_?(foreach_)?(add|sub|mul|div|neg|exp|log|sqrt|rsqrt|pow|square|abs"
                  r"|clamp|relu|gelu|silu|sigmoid|tanh|hardtanh|leaky_relu|threshold_backward|sigmoid_backward|sin|cos"
                  r"|tanh_backward|gelu_backward|native_dropout.*|dropout|bernoulli|lerp|addcmul|addcdiv|eq|ne|gt|lt|ge"
                  r"|le|bitwise_\w+|logical_\w+|reciprocal|sign|round|floor|erf|softplus|hardswish|elu|maximum|minimum)_?"
                  r"\b|(add|sub|mul|div|neg|exp|log|sqrt|pow|abs|clamp|relu|gelu|silu|sigmoid|tanh|dropout|where|threshold"
                  r"|leakyrelu|elu|softplus|hardtanh)backward|accumulategrad"),
]  # fmt: skip
_COMPILED = [(category, re.compile(pattern, re.IGNORECASE)) for category, pattern in _RULES]

TENSOR_CORES = re.compile(
    r"tensorop|16816|1688|884|gmma|wgmma|hmma|imma|xmma.*(tensor|tf32|bf16|f16)|nvjet|tensor16x8|_mma_|"
    r"flash_(fwd|bwd)|fmha|cudnn_generated_fort_native_sdpa",
    re.IGNORECASE,
)
"""Kernels whose names say that they multiply on the tensor cores."""
TF32 = re.compile(r"tf32|s1688|tensor16x8x8", re.IGNORECASE)
LAYOUT_CHANGE = re.compile(r"nchwtonhwc|nhwctonchw|nchw2nhwc|nhwc2nchw", re.IGNORECASE)
"""Kernels that only turn one memory format into the other around a convolution."""
SYNC_CALL = re.compile(r"(cuda|hip|cu)(Stream|Device|Event|Ctx)Synchronize|^(cuda|hip)Memcpy$|^cudaMemcpyFrom")
LOADER = re.compile(r"enumerate\(DataLoader\)|DataLoader.*__next__", re.IGNORECASE)


def category_of(name: str) -> str:
    """The category that a name decides, or '' when it decides none."""
    return next((category for category, pattern in _COMPILED if pattern.search(name)), "")


def is_tensor_core(kernel: str) -> bool:
    return bool(TENSOR_CORES.search(kernel)) and "simt" not in kernel.lower()
