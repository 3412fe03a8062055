"""LitServe with the same decoding, model and finishing as ``hotlap serve``: the other arm of serve_http."""

from __future__ import annotations

from typing import Any

import litserve as ls


class PictureApi(ls.LitAPI):
    """A picture in the form field ``picture`` to the objects in it."""

    def __init__(self, spec: Any, device: str, **options: Any) -> None:
        super().__init__(**options)
        self._model_spec, self._place = spec, device

    def setup(self, device: Any) -> None:
        from hotlap.tools.serve.plan import make_servable

        self.servable = make_servable(self._model_spec)
        self.servable.warm_up()
        self.loaded = self.servable.load(self._place)

    def decode_request(self, request):  # LitServe reads an annotation here as the type of the body
        return self.servable.decode(request["picture"].file.read(), {}, self.loaded.signature)

    def batch(self, inputs: list[Any]) -> Any:
        return inputs

    def predict(self, x: Any) -> Any:
        (out,) = self.loaded.begin([decoded.rows for decoded in x])()
        return [(decoded, out[i : i + 1]) for i, decoded in enumerate(x)]

    def unbatch(self, output: Any) -> Any:
        return output

    def encode_response(self, output):
        decoded, out = output
        return self.servable.finish((out,), decoded.facts, {})


def run_litserve(spec: Any, device: str, rows: int, workers: int, port: int) -> None:
    """Serves until it is killed; ``workers`` processes each hold the model, which is LitServe's way to more cores."""
    api = PictureApi(spec, device, max_batch_size=rows, batch_timeout=0.005)
    # It is told of no accelerator because the model is put on its device by the same code as in the other arm.
    server = ls.LitServer(api, accelerator="cpu", workers_per_device=workers, timeout=120)
    server.run(port=port, generate_client_file=False, log_level="warning")
