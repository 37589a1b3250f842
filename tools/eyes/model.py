"""The two towers that are trained: TinyViT's last stage for pictures, MiniLM's last layer for texts, and their heads.

Both begin with the weights of the models they continue, so that training starts from what those know. Each tower ends
in a vector of the same 512-dimensional space.
"""

from __future__ import annotations

from pathlib import Path

import onnx
import torch
from onnx import numpy_helper
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

SPACE = 512
GRID = 7
WIDTH = 320
TEXT_WIDTH = 384


class Pool(nn.Module):
    """From tokens to a vector: a line and a bend on their mean, and what a few heads look for among them."""

    def __init__(self, width: int, *, heads: int = 8, hidden: int = 1024, dropout: float = 0.1) -> None:
        super().__init__()
        self.norm, self.mean_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.straight = nn.Linear(width, SPACE)
        self.bend = nn.Sequential(
            nn.Linear(width, hidden), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden, SPACE), nn.Dropout(dropout)
        )
        self.look, self.value = nn.Linear(width, heads), nn.Linear(width, SPACE)
        self.found = nn.Linear(SPACE, SPACE)
        self.heads = heads
        nn.init.zeros_(self.found.weight)  # looking at single tokens is learned on top of the mean
        nn.init.zeros_(self.found.bias)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return a vector of unit length; ``mask`` is 1 for tokens and 0 for padding."""
        mean = tokens.mean(1) if mask is None else (tokens * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return F.normalize(self.of_mean(mean) + self.of_tokens(tokens, mask), dim=-1)

    def of_mean(self, mean: Tensor) -> Tensor:
        """Return the part that comes from the mean of the tokens."""
        normed = self.mean_norm(mean)
        vector: Tensor = self.straight(normed) + self.bend(normed)
        return vector

    def of_tokens(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the part that comes from single tokens."""
        normed = self.norm(tokens)
        looks = self.look(normed)
        if mask is not None:
            looks = looks.masked_fill(mask[..., None] == 0, -1e4)
        weights = looks.softmax(1)
        values = self.value(normed).unflatten(-1, (self.heads, -1))
        gathered = torch.einsum("bth,bthd->bhd", weights, values).flatten(1)
        vector: Tensor = self.found(F.gelu(gathered))
        return vector


class Graph:
    """The weights of an ONNX graph, found by the node that uses them."""

    def __init__(self, path: Path) -> None:
        graph = onnx.load(path).graph
        self.nodes = {node.name: node for node in graph.node}
        self.made_by = {name: node for node in graph.node for name in node.output}
        self.tensors = {t.name: torch.tensor(numpy_helper.to_array(t).copy()) for t in graph.initializer}

    def of(self, node: str) -> list[Tensor]:
        """Return the weights among the inputs of a node."""
        return [self.tensors[name] for name in self.nodes[node].input if name in self.tensors]

    def constant(self, name: str) -> Tensor:
        """Return a tensor by name, whether it is a weight or the value of a constant node."""
        if name in self.tensors:
            return self.tensors[name]
        return torch.tensor(numpy_helper.to_array(self.made_by[name].attribute[0].t).copy())


class Conv(nn.Module):
    """A convolution with weights of the graph."""

    def __init__(self, graph: Graph, name: str, *, stride: int = 1, groups: int = 1, padding: int = 0) -> None:
        super().__init__()
        weight, bias = graph.of(f"{name}/conv/Conv")
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)
        self.stride, self.padding, self.groups = stride, padding, groups

    def forward(self, x: Tensor) -> Tensor:
        """Convolve."""
        return F.conv2d(x, self.weight, self.bias, self.stride, self.padding, 1, self.groups)


def _linear(graph: Graph, name: str) -> nn.Linear:
    (weight,) = graph.of(f"{name}/MatMul")
    layer = nn.Linear(*weight.shape)
    layer.weight.data, layer.bias.data = weight.T.contiguous(), graph.of(f"{name}/Add")[0]
    return layer


def _norm(weight: Tensor, bias: Tensor, eps: float = 1e-5) -> nn.LayerNorm:
    layer = nn.LayerNorm(len(weight), eps=eps)
    layer.weight.data, layer.bias.data = weight.clone(), bias.clone()
    return layer


class Block(nn.Module):
    """One block of TinyViT's last stage: attention with a bias for each offset, a local convolution, two layers."""

    heads, size = 10, 32

    def __init__(self, graph: Graph, number: int) -> None:
        super().__init__()
        node, key = f"/stages/stages.3/blocks/blocks.{number}", f"stages.3.blocks.{number}"
        tensors = graph.tensors
        self.attention_norm = _norm(tensors[f"{key}.attn.norm.weight"], tensors[f"{key}.attn.norm.bias"])
        self.feed_norm = _norm(tensors[f"{key}.mlp.norm.weight"], tensors[f"{key}.mlp.norm.bias"])
        self.qkv, self.out = _linear(graph, f"{node}/attn/qkv"), _linear(graph, f"{node}/attn/proj")
        self.up, self.down = _linear(graph, f"{node}/mlp/fc1"), _linear(graph, f"{node}/mlp/fc2")
        self.local = Conv(graph, f"{node}/local_conv", groups=WIDTH, padding=1)
        self.biases = nn.Parameter(tensors[f"{key}.attn.attention_biases"])
        (offsets,) = [name for name in graph.nodes[f"{node}/attn/Gather"].input if "attention_biases" not in name]
        self.offsets: Tensor
        self.register_buffer("offsets", graph.constant(offsets))

    def forward(self, x: Tensor) -> Tensor:
        """Return tokens (pictures, 49, 320), mixed."""
        qkv = self.qkv(self.attention_norm(x)).unflatten(-1, (self.heads, 3 * self.size))
        query, key, value = (part.transpose(1, 2) for part in qkv.split(self.size, -1))
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=self.biases[:, self.offsets][None])
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        x = self.local(x.transpose(1, 2).unflatten(-1, (GRID, GRID))).flatten(2).transpose(1, 2)  # type: ignore[no-untyped-call]
        fed: Tensor = x + self.down(F.gelu(self.up(self.feed_norm(x))))
        return fed


class LastStage(nn.Module):
    """TinyViT's last stage: maps of 160 x 14 x 14 in, 49 tokens of 320 numbers out."""

    def __init__(self, model: Path) -> None:
        super().__init__()
        graph, name = Graph(model), "/stages/stages.3/downsample"
        self.shrink = nn.ModuleList(
            [
                Conv(graph, f"{name}/conv1"),
                Conv(graph, f"{name}/conv2", stride=2, groups=WIDTH, padding=1),
                Conv(graph, f"{name}/conv3"),
            ]
        )
        self.blocks = nn.Sequential(Block(graph, 0), Block(graph, 1))

    def forward(self, maps: Tensor) -> Tensor:
        """Return the tokens."""
        x = self.shrink[2](F.gelu(self.shrink[1](F.gelu(self.shrink[0](maps)))))
        tokens: Tensor = self.blocks(x.flatten(2).transpose(1, 2))
        return tokens


class ImageTower(nn.Module):
    """From the map of the third stage to a vector."""

    def __init__(self, tinyvit: Path) -> None:
        super().__init__()
        self.stage, self.pool = LastStage(tinyvit), Pool(WIDTH)

    def forward(self, maps: Tensor) -> Tensor:
        """Return unit vectors."""
        vector: Tensor = self.pool(self.stage(maps))
        return vector


class LastLayer(nn.Module):
    """The sixth layer of MiniLM."""

    heads = 12

    def __init__(self, weights: Path) -> None:
        super().__init__()
        tensors, key = load_file(weights), "encoder.layer.5."

        def linear(name: str) -> nn.Linear:
            weight = tensors[f"{key}{name}.weight"]
            layer = nn.Linear(weight.shape[1], weight.shape[0])
            layer.weight.data, layer.bias.data = weight.clone(), tensors[f"{key}{name}.bias"].clone()
            return layer

        def norm(name: str) -> nn.LayerNorm:
            return _norm(tensors[f"{key}{name}.weight"], tensors[f"{key}{name}.bias"], eps=1e-12)

        self.query, self.key = linear("attention.self.query"), linear("attention.self.key")
        self.value, self.out = linear("attention.self.value"), linear("attention.output.dense")
        self.up, self.down = linear("intermediate.dense"), linear("output.dense")
        self.attention_norm, self.feed_norm = norm("attention.output.LayerNorm"), norm("output.LayerNorm")

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return tokens, mixed; ``mask`` is 1 for tokens and 0 for padding."""
        query, key, value = (
            part(tokens).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.query, self.key, self.value)
        )
        seen = None if mask is None else (mask > 0)[:, None, None, :]
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=seen).transpose(1, 2).flatten(2)
        x = self.attention_norm(tokens + self.out(mixed))
        fed: Tensor = self.feed_norm(x + self.down(F.gelu(self.up(x))))
        return fed


class TextTower(nn.Module):
    """From the tokens of MiniLM's fifth layer to a vector."""

    def __init__(self, minilm: Path) -> None:
        super().__init__()
        self.layer, self.pool = LastLayer(minilm), Pool(TEXT_WIDTH)

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return unit vectors."""
        vector: Tensor = self.pool(self.layer(tokens, mask), mask)
        return vector


class Eyes(nn.Module):
    """Both towers, and how sharply their cosines are compared."""

    def __init__(self, tinyvit: Path, minilm: Path) -> None:
        super().__init__()
        self.image, self.text = ImageTower(tinyvit), TextTower(minilm)
        self.scale = nn.Parameter(torch.tensor(20.0).log())
