"""Messages between processes of ours: tensors lie in shared memory, and only its descriptors go over.

torch.multiprocessing passes descriptors, too, but by a thread of the sender that the receiver has to call on, and that
keeps those for ever that a process which died did not fetch. Here they travel in the message itself.
"""

from __future__ import annotations

import errno
import io
import os
import pickle
import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

MOST_AT_ONCE = 200
"""Descriptors that the kernel takes along at a time: 253."""
LARGEST_HELD = 32 << 20
"""Bytes of shared memory that a shelf keeps for the next array."""
MOST_SHOWN = 2
"""Arrays on a shelf that a window keeps in sight: a picture's maps, and the picture."""


class _Packer(pickle.Pickler):
    """Pickles what is no tensor; tensors are moved to shared memory and named by their descriptors' places."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.descriptors: list[int] = []

    def persistent_id(self, thing: Any) -> Any:
        import torch

        if not isinstance(thing, torch.Tensor):
            return None
        layout = (thing.dtype, tuple(thing.shape), thing.stride(), thing.storage_offset())
        storage = thing.untyped_storage()
        if not storage.nbytes():
            return (-1, 0, *layout)
        descriptor, size = storage._share_fd_cpu_()
        self.descriptors.append(descriptor)
        return (len(self.descriptors) - 1, size, *layout)


class Window:
    """What another process shows on its shelf, mapped once as long as it lies there: mapping it takes a millisecond."""

    def __init__(self) -> None:
        self._mapped: dict[tuple[int, int, int], Any] = {}

    def storage(self, descriptor: int, size: int) -> Any:
        """The memory behind a descriptor, which may be closed afterwards."""
        about = os.fstat(descriptor)
        key = about.st_dev, about.st_ino, size
        found = self._mapped.pop(key) if key in self._mapped else _mapped(descriptor, size)
        if about.st_ino and size <= LARGEST_HELD:
            self._mapped[key] = found  # as long as it is mapped, no other memory has its number
        if len(self._mapped) > MOST_SHOWN:
            del self._mapped[next(iter(self._mapped))]
        return found


def _mapped(descriptor: int, size: int) -> Any:
    import torch

    kind: Any = torch.UntypedStorage
    return kind._new_shared_fd_cpu(descriptor, size)


class _Unpacker(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, descriptors: list[int], window: Window | None) -> None:
        super().__init__(file)
        self._descriptors, self._storage = descriptors, window.storage if window else _mapped

    def persistent_load(self, named: Any) -> Any:
        import torch

        place, size, dtype, shape, stride, offset = named
        if place < 0:
            return torch.empty(shape, dtype=dtype)
        storage = self._storage(self._descriptors[place], size)
        return torch.empty(0, dtype=dtype).set_(storage, offset, shape, stride)


def put(tensor: Tensor) -> Tensor:
    """The same values in shared memory, filled by the system in one go where it can.

    Memory that ``send`` moves a tensor to is cleared and mapped page by page as it is written, which takes twice as
    long.
    """
    import torch

    storage = tensor.untyped_storage()
    if not hasattr(os, "memfd_create") or not storage.nbytes():
        return tensor
    with open(os.memfd_create("hotlap"), "wb") as file:
        file.write(torch.empty(0, dtype=torch.uint8).set_(storage).numpy().data)
        file.flush()
        shared = _mapped(file.fileno(), storage.nbytes())
    return torch.empty(0, dtype=tensor.dtype).set_(shared, tensor.storage_offset(), tensor.shape, tensor.stride())


class Shelf:
    """Shared memory in which one array after the other is shown to another process."""

    def __init__(self) -> None:
        self._held: dict[str, Tensor] = {}

    def hold(self, name: str, array: np.ndarray) -> Tensor:
        """A copy in shared memory: where the last one was, if it was as large, for new memory takes thrice as long."""
        import numpy as np
        import torch

        held = self._held.get(name)
        if held is None or tuple(held.shape) != array.shape or held.numpy().dtype != array.dtype:
            held = put(torch.from_numpy(np.ascontiguousarray(array)))
            self._held = {**self._held, name: held} if array.nbytes <= LARGEST_HELD else {}
        else:
            np.copyto(held.numpy(), array)
        return held


def send(pipe: Any, message: Any) -> None:
    """Puts a message of plain values and tensors on the CPU into a pipe; OSError where nobody reads it any more."""
    packed = io.BytesIO()
    packer = _Packer(packed)
    packer.dump(message)
    pipe.send_bytes(len(packer.descriptors).to_bytes(4, "little") + packed.getbuffer())
    with socket.socket(fileno=os.dup(pipe.fileno())) as wire:
        for start in range(0, len(packer.descriptors), MOST_AT_ONCE):
            socket.send_fds(wire, [b"."], packer.descriptors[start : start + MOST_AT_ONCE])


def receive(pipe: Any, window: Window | None = None) -> Any:
    """The next message in a pipe, waited for; EOFError where none will come, OSError where no more files may be open.

    What another process's shelf shows again and again is looked at through a ``window``, one for each pipe. Only for
    pipes to processes of our own: what is unpickled may run code.
    """
    content = pipe.recv_bytes()
    count = int.from_bytes(content[:4], "little")
    descriptors: list[int] = []
    try:
        with socket.socket(fileno=os.dup(pipe.fileno())) as wire:
            while len(descriptors) < count:
                said, more, flags, _ = socket.recv_fds(wire, 1, MOST_AT_ONCE)
                descriptors += more
                if not said:
                    raise EOFError("the pipe ended in the middle of a message")
                if flags & socket.MSG_CTRUNC:  # the system has thrown the others away: they will never come
                    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return _Unpacker(io.BytesIO(memoryview(content)[4:]), descriptors, window).load()
    finally:
        for descriptor in descriptors:
            os.close(descriptor)  # what was mapped has a descriptor of its own
