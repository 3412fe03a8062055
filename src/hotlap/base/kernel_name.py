"""Names of GPU kernels as people read them: what runs, without the types, arguments and namespaces it was made from."""

from __future__ import annotations

import re

_PLACE = re.compile(r"\(anonymous namespace\)::")
_HEAD = re.compile(r"^(?:void )?((?:\w+::)*)(\w+)(?=[<(])")
_WORK = re.compile(r"(?<=std::)(?!array\b)\w+|\w*(?:[Ff]unctor\w*|_kernel_cuda|_kernel|Assign|ReduceAdd)\b")
"""What a wrapper is made to do: a functor, the kernel whose lambda it runs, or an operation of C++'s own."""
_WRAPPERS = ("elementwise_kernel", "multi_tensor_apply_kernel", "reduce_kernel")
"""Kernels of torch that do what their template's arguments say."""
_CUTLASS = ("Kernel", "Kernel2", "device_kernel")
_MOST = 2
"""Telling words of a template that are kept."""


def kernel_label(name: str) -> str:
    """``elementwise_kernel: direct_copy_kernel_cuda`` for what takes a thousand letters; other names as they are."""
    plain = _PLACE.sub("", name)
    head = _HEAD.match(plain)
    if head is None:
        return name
    short, inner = head[2], plain[head.end() :]
    if short in _CUTLASS:
        made_of = re.search(r"(\w*(?:cutlass|gemm|sm\d\d)\w*)(?=[<>(,])", inner)
        return made_of[1] if made_of else short
    if not short.endswith(_WRAPPERS):
        return short
    work = dict.fromkeys(word for word in _WORK.findall(_template(inner)) if word != short)
    return f"{short}: {', '.join(list(work)[:_MOST])}" if work else short


def _template(text: str) -> str:
    """The arguments in the angle brackets that ``text`` begins with."""
    depth = 0
    for place, letter in enumerate(text):
        depth += {"<": 1, ">": -1}.get(letter, 0)
        if not depth:
            return text[1:place]
    return text[1:]
