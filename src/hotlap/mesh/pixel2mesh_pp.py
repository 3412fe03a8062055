"""Pixel2Mesh++: a mesh from a few views of an object, coarse first and then refined around each vertex.

Pictures are RGB, 0 to 255 as uint8 or 0 to 1, on white. Cameras are rows of ``hotlap.mesh.cameras``. All coordinates
are in the frame of the first view.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from hotlap.base.errors import ConfigError, ShapeError
from hotlap.base.shapes import bind_dims
from hotlap.kernels.graph_conv.support import Support
from hotlap.kernels.view_pool.op import view_pool
from hotlap.kernels.view_pool.reference import TAIL
from hotlap.mesh.cameras import SIZE_PX, Cameras, project_around, project_to_views
from hotlap.mesh.cnn import CHANNELS, CNN18
from hotlap.mesh.graph_layers import PLAIN, GraphConv, MeshBuffers, pass_coordinates
from hotlap.mesh.template import HypothesisGraph, Template, ellipsoid, hypothesis_graph

MAX_VIEWS = 8
FEATURES = 3 + 3 * sum(CHANNELS[2:])
"""Of a vertex in the coarse stage: its place, and maximum, mean and deviation over the views of 960 channels."""
FINE_FEATURES = 3 + 3 * sum(CHANNELS[:3])
"""Of a hypothesis in the refinement: its place, and the same of 112 channels."""
HIDDEN_LAYERS = (12, 12, 13)
ROUNDS = 2
CPU_CHUNK = 128
"""Vertices whose hypotheses are worked on at once, without gradients, on a CPU: what is between the layers stays in its
caches."""


class Coarse(NamedTuple):
    """What the coarse stage gives: the meshes after each block, and what each block started from."""

    vertices: list[Tensor]
    """[B, 156, 3], [B, 618, 3], [B, 2466, 3]."""
    starts: list[Tensor]
    """The same shapes: the template, and the meshes before with their edges halved."""


class CoarseBlock(nn.Module):
    """Graph convolutions that move the vertices of one level: 1 in, 12 or 13 in averaged pairs, 1 out."""

    def __init__(self, features: int, hidden: int, num_hidden: int) -> None:
        super().__init__()
        self.first = GraphConv(features, hidden)
        layers = [GraphConv(hidden, hidden) for _ in range(num_hidden)]
        self.hidden = nn.ModuleList(layers)
        self.last = GraphConv(hidden, 3)
        pass_coordinates(self.first, layers, self.last)

    def forward(self, y: Tensor, support: Support) -> tuple[Tensor, Tensor]:  # [B, V, 2 * hidden]
        """The new places [B, V, 3] and the last hidden state, from the first layer's product with its weight."""
        x = self.first.mix(y, support)
        pairs = len(self.hidden) // 2 * 2
        for number in range(0, pairs, 2):
            middle = self.hidden[number](x, support)
            x = self.hidden[number + 1](middle, support, residual=x, share=0.5)
        for layer in list(self.hidden)[pairs:]:
            x = layer(x, support)
        return self.last(x, support, relu=False), x


class CoarseStage(nn.Module):
    """The first stage (MVP2M), 19,051,385 parameters: an ellipsoid deformed in three blocks, each finer.

    Features are the nearest pixels of the maps of 56, 28, 14 and 7 pixels. The graph convolutions stay in float32 under
    autocast: they predict coordinates outright, and bfloat16 would move vertices by 2e-3 of the object's size.
    """

    def __init__(
        self, *, hidden: int = 192, levels: int = 3, compat: bool = False, template: Template | None = None
    ) -> None:
        super().__init__()
        template = template or ellipsoid()
        if not 1 <= levels <= len(HIDDEN_LAYERS):
            raise ConfigError(f"levels = {levels} is not valid", expected="1, 2 or 3")
        self.compat, self.impl = compat, PLAIN
        self.cnn = CNN18()
        self.levels = nn.ModuleList(MeshBuffers(level) for level in template.levels[:levels])
        self.blocks = nn.ModuleList(
            CoarseBlock(FEATURES + (hidden if number else 0), hidden, HIDDEN_LAYERS[number]) for number in range(levels)
        )

    def use_kernels(self) -> None:
        """From now on features are read by the first kernel that can run where they are."""
        self.impl = "auto"

    @property
    def faces(self) -> Tensor:
        """[F, 3] of the last mesh."""
        return self.levels[-1].faces  # type: ignore[return-value, union-attr]

    def forward(self, image: Tensor, cameras: Tensor) -> Coarse:  # [B, V, 3, H, W], [B, V, 5]
        """The meshes of all levels, in float32."""
        maps = self.cnn(prepared(image, cameras, self.cnn, self.compat))[2:]
        views = Cameras.from_rows(cameras)
        places: Tensor = self.levels[0].vertices.expand(len(image), -1, -1)  # type: ignore[operator, union-attr]
        hidden: Tensor | None = None
        found, starts = [], []
        with torch.autocast(image.device.type, enabled=False):
            for number, block in enumerate(self.blocks):
                y = self._first_product(block.first, maps, places, views, hidden)  # type: ignore[arg-type]
                if number:  # halving edges is linear, so it may come after the product, where it is cheaper
                    y, places = (self.levels[number - 1].halved(t) for t in (y, places))  # type: ignore[operator]
                starts.append(places)
                places, hidden = block(y, self.levels[number].support)
                found.append(places)
        return Coarse(found, starts)

    def _first_product(
        self, layer: GraphConv, maps: list[Tensor], places: Tensor, views: Cameras, hidden: Tensor | None
    ) -> Tensor:  # [B, V, 2 * hidden]
        pixels = project_to_views(places, views)
        x = view_pool(maps, pixels, bilinear=False, compat=self.compat, size=SIZE_PX, impl=self.impl)
        x, weight = x.to(layer.weight.dtype), layer.weight
        y = x @ weight[3:FEATURES] + places @ weight[:3]
        return y if hidden is None else y + hidden @ weight[FEATURES:]


class Refinement(nn.Module):
    """Moves each vertex to the mean of 43 places around it, weighted by how well they look in all views.

    426,433 parameters: six graph convolutions on the graph of the places.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        widths = (FINE_FEATURES, *[hidden] * 5, 1)
        self.layers = nn.ModuleList(GraphConv(a, b) for a, b in pairwise(widths))
        with torch.no_grad():  # scores are cut off below 0: fresh ones must lie above, or none would ever learn
            self.layers[-1].weight.mul_(0.1)  # type: ignore[operator, union-attr]
            self.layers[-1].bias.fill_(1)  # type: ignore[operator, union-attr]
        self.impl = PLAIN

    def use_kernels(self) -> None:
        """From now on features are read by the first kernel that can run where they are."""
        self.impl = "auto"

    def forward(
        self, vertices: Tensor, maps: list[Tensor], views: Cameras, offsets: Tensor, support: Support
    ) -> Tensor:  # [B, N, 3], ..., [43, 3]
        """The moved vertices [B, N, 3]."""
        num_objects, count = vertices.shape[:2]
        points = (vertices[:, :, None] + offsets).flatten(1, 2)
        pixels = project_around(vertices, offsets, views)
        x = view_pool(maps, pixels, points, size=SIZE_PX, impl=self.impl)
        x = x.view(num_objects * count, len(offsets), -1)
        score = self._scores(x, support).view(num_objects, count, len(offsets), 1)
        share = torch.softmax(score.to(vertices.dtype), 2)
        return vertices + (share * offsets).sum(2)

    def _scores(self, x: Tensor, support: Support) -> Tensor:  # [B * N, 43, 344] -> [B * N, 43, 1]
        first, second, third, fourth, fifth, last = self.layers
        weight = first.tail_weight(3, FINE_FEATURES, TAIL)  # type: ignore[operator]
        x1 = first.mix(x @ weight.to(x.dtype), support)  # type: ignore[operator]
        x3 = third(second(x1, support), support, residual=x1)
        x5 = fifth(fourth(x3, support), support, residual=x3)
        return last(x5, support)


class RefineStage(nn.Module):
    """The second stage (MDN), 13,696,498 parameters: two rounds of refinement on maps of 224, 112 and 56 pixels.

    Of its 18 convolutions the last ten feed nothing; they are there because published weights have them.
    """

    offsets: Tensor
    columns: Tensor
    values: Tensor
    dense: Tensor

    def __init__(self, *, hidden: int = 192, compat: bool = False, graph: HypothesisGraph | None = None) -> None:
        super().__init__()
        graph = graph or hypothesis_graph()
        self.compat = compat
        self.cnn = CNN18()
        for group in list(self.cnn.groups)[3:]:
            group.requires_grad_(False)
        self.rounds = nn.ModuleList(Refinement(hidden) for _ in range(ROUNDS))
        order = graph.support.abs().sort(dim=1, descending=True, stable=True).indices
        self.register_buffer("offsets", graph.offsets.clone())
        self.register_buffer("columns", order.int())
        self.register_buffer("values", graph.support.gather(1, order))
        self.register_buffer("dense", graph.support.clone())

    def forward(self, image: Tensor, cameras: Tensor, vertices: Tensor) -> list[Tensor]:
        """The vertices [B, N, 3] after each round, in float32; of [B, V, 3, H, W], [B, V, 5], [B, N, 3]."""
        maps = self.cnn(prepared(image, cameras, self.cnn, self.compat), 3)
        views = Cameras.from_rows(cameras)
        found = []
        for refinement in self.rounds:
            step = vertices.shape[1]
            if vertices.device.type == "cpu" and not torch.is_grad_enabled() and refinement.impl != PLAIN:
                step = CPU_CHUNK
            support = Support(self.columns, self.values, self.dense)
            parts = [refinement(part, maps, views, self.offsets, support) for part in vertices.split(step, 1)]
            vertices = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
            found.append(vertices)
        return found


class Pixel2MeshPP(nn.Module):
    """A mesh of 2466 vertices and 4928 faces from 1 to 8 views: both stages, the coarse one without gradients.

    ``compat`` repeats what converted weights depend on: pictures in BGR order, and the coarse stage reading the first
    view's maps for other views. ``levels`` below 3 leaves the finer meshes out, for trials.
    """

    def __init__(
        self,
        *,
        hidden: int = 192,
        levels: int = 3,
        compat: bool = False,
        template: Template | None = None,
        graph: HypothesisGraph | None = None,
    ) -> None:
        super().__init__()
        self.coarse = CoarseStage(hidden=hidden, levels=levels, compat=compat, template=template)
        self.refine = RefineStage(hidden=hidden, compat=compat, graph=graph)
        self.coarse.requires_grad_(False)

    @property
    def levels(self) -> nn.ModuleList:
        """The meshes from coarse to fine."""
        return self.coarse.levels

    @property
    def faces(self) -> Tensor:
        """[F, 3] of the mesh that :meth:`forward` gives."""
        return self.coarse.faces

    def forward(
        self,
        image: Tensor,  # [B, V, 3, H, W]
        cameras: Tensor,  # [B, V, 5]
        every: bool = False,
    ) -> Tensor | list[Tensor]:
        """The vertices [B, 2466, 3] in the frame of the first view, in float32.

        With ``every`` those of the coarse stage, and after each round of refinement.
        """
        image = scaled(image, next(self.parameters()).dtype)  # once for both stages
        with torch.no_grad():
            coarse = self.coarse(image, cameras).vertices[-1]
        found = [coarse, *self.refine(image, cameras, coarse)]
        return found if every else found[-1]


def prepared(image: Tensor, cameras: Tensor, cnn: CNN18, bgr: bool) -> Tensor:  # [B, V, 3, H, W], [B, V, 5]
    """The views one after another [B * V, 3, H, W], from 0 to 1, in the network's number format."""
    dims = bind_dims(image=(image, "B V 3 H W"), cameras=(cameras, "B V 5"))
    if not 1 <= dims["V"] <= MAX_VIEWS:
        raise ShapeError(f"image has {dims['V']} views", expected=f"1 to {MAX_VIEWS}")
    views = scaled(image, next(cnn.parameters()).dtype).flatten(0, 1)
    return views.flip(1) if bgr else views


def scaled(image: Tensor, dtype: torch.dtype) -> Tensor:  # [B, V, 3, H, W]
    """Colours from 0 to 1, in autocast's number format or ``dtype``; pictures that are no uint8 are so already."""
    if image.dtype != torch.uint8 or image.ndim != 5:
        return image
    kind = image.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else dtype
    views = image.flatten(0, 1).contiguous(memory_format=torch.channels_last)
    return (views.to(dtype) / 255).unflatten(0, image.shape[:2])
