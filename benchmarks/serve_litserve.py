"""LitServe with the same decoding, model and finishing as ``hotlap serve``: the other arm of serve_http."""

from __future__ import annotations

from typing import Any

import litserve as ls
import torch


class PictureApi(ls.LitAPI):
    """A picture in the form field ``picture`` to the classes in it."""

    def __init__(self, spec: Any, device: str, **options: Any) -> None:
        super().__init__(**options)
        self._model_spec, self._place = spec, device

    def setup(self, device: Any) -> None:
        from hotlap.measure.served_workload import WorkloadServable

        self.servable = WorkloadServable(self._model_spec)
        self.loaded = self.servable.load(self._place)

    def decode_request(self, request):  # LitServe reads an annotation here as the type of the body
        return self.servable.decode(request["picture"].file.read(), {}, self.loaded.signature)

    def batch(self, inputs: list[Any]) -> Any:
        return inputs, torch.cat([decoded.rows[0] for decoded in inputs])

    def predict(self, x: Any) -> Any:
        inputs, rows = x
        (out,) = self.loaded.run((rows,))
        return [(decoded, out[i : i + 1]) for i, decoded in enumerate(inputs)]

    def unbatch(self, output: Any) -> Any:
        return output

    def encode_response(self, output):
        decoded, out = output
        return self.servable.finish((out,), decoded.facts, {})


def run_litserve(spec: Any, device: str, rows: int, port: int) -> None:
    """Serves until it is killed."""
    api = PictureApi(spec, device, max_batch_size=rows, batch_timeout=0.005)
    # It is told of no accelerator because the model is put on its device by the same code as in the other arm.
    server = ls.LitServer(api, accelerator="cpu", timeout=60)
    server.run(port=port, generate_client_file=False, log_level="warning")
