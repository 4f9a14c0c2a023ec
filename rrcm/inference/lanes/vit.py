"""The inference form of a ViT at one sigma (rrcm/models/folding/vit.py) as a program."""

from typing import Any

import torch

from rrcm.inference.lanes import kernels
from rrcm.inference.lanes.kernels import Layer, Pairs, dense
from rrcm.inference.lanes.program import Compiled, Machine, Program


def build(network: Any, shape: tuple[int, int, int], machine: Machine) -> Compiled:
    """The program of ``network``, a `FoldedAtSigma`, for images of ``shape`` [C, H, W]."""
    channels, height, width = shape
    trunk, side = network.trunk, network.trunk.patch_size
    tokens, features = network.start.shape
    program = Program(machine, pixels=channels * height * width, classes=trunk.head.out_features)
    x = program.buffer(program.pixels)
    h, n = program.buffer(tokens * features), program.buffer(tokens * features)
    qkv, attended = program.buffer(3 * tokens * features), program.buffer(tokens * features)
    looks, hidden = program.buffer(tokens * tokens), program.buffer(4 * tokens * features)
    program.call(kernels.lanes_of, program.pixels, to=[x, program.images])
    program.call(kernels.fill, 2 * features, to=[h, program.constant(network.start[:2])])
    patches = Layer(
        outputs=features,
        steps=((channels, height * width), (side, width), (side, 1)),
        places=((height // side, side * width), (width // side, side)),
        starts=True,
    )
    program.product(
        patches, network.kernel.T, network.start[2:], y=program.within(h, 2 * features), x=x
    )
    for block in trunk.blocks:
        _attend(program, block, tokens, features, h=h, n=n, qkv=qkv, looks=looks, out=attended)
        _mlp(program, block.mlp, tokens, features, h=h, n=n, hidden=hidden)
    _attend_once(program, trunk.last, tokens, features, h=h, n=n, q=qkv, looks=looks, out=attended)
    _mlp(program, trunk.last.mlp, 1, features, h=h, n=n, hidden=hidden)
    if isinstance(trunk.norm, torch.nn.LayerNorm):
        program.call(kernels.normalise, 1, features, trunk.norm.eps, to=[h, h])
    head = dense(features, program.classes)
    program.product(head, trunk.head.weight, trunk.head.bias, y=program.scores, x=h)
    return program.compile()


def _attend(
    program: Program,
    block: Any,
    tokens: int,
    features: int,
    *,
    h: Any,
    n: Any,
    qkv: Any,
    looks: Any,
    out: Any,
) -> None:
    """Attention of all tokens to each other, added to ``h``."""
    depth, registers = features // block.heads, program.machine.registers
    program.call(kernels.normalise, tokens, features, block.norm.eps, to=[n, h])
    layer = dense(features, 3 * features, places=tokens)
    program.product(layer, block.qkv.weight, block.qkv.bias, y=qkv, x=n)
    towards = Pairs(
        shape=(tokens, tokens, depth), a=(3 * features, 1), b=(3 * features, 1), c=tokens
    )
    mixed = Pairs(shape=(tokens, depth, tokens), a=(tokens, 1), b=(1, 3 * features), c=features)
    with program.code.loop(block.heads) as head:
        at = program.code.times(head, depth)
        q, k, v = (program.within(qkv, program.code.plus(at, i * features)) for i in range(3))
        program.call(kernels.pairs, towards, registers, to=[looks, q, k])
        program.call(kernels.softmax, tokens, tokens, to=[looks])
        program.call(kernels.pairs, mixed, registers, to=[program.within(out, at), looks, v])
    layer = dense(features, features, places=tokens, residual=True)
    program.product(layer, block.project.weight, block.project.bias, y=h, x=out, residual=h)


def _attend_once(
    program: Program,
    block: Any,
    tokens: int,
    features: int,
    *,
    h: Any,
    n: Any,
    q: Any,
    looks: Any,
    out: Any,
) -> None:
    """Attention of the cls token, which attends to the normed tokens themselves."""
    depth, registers = features // block.heads, program.machine.registers
    program.call(kernels.normalise, tokens, features, block.norm.eps, to=[n, h])
    program.product(dense(features, features), block.q.weight, block.q.bias, y=q, x=n)
    none, none_of_head = torch.zeros(features), torch.zeros(depth)
    seen, pooled = program.within(q, features), program.within(q, 2 * features)
    towards = Pairs(shape=(1, tokens, features), a=(features, 1), b=(features, 1), c=tokens)
    mixed = Pairs(shape=(1, features, tokens), a=(tokens, 1), b=(1, features), c=features)
    for head in range(block.heads):
        own = program.within(q, head * depth)
        program.product(dense(depth, features), block.k[head].T, none, y=seen, x=own)
        program.call(kernels.pairs, towards, registers, to=[looks, seen, n])
        program.call(kernels.softmax, 1, tokens, to=[looks])
        program.call(kernels.pairs, mixed, registers, to=[pooled, looks, n])
        own = program.within(out, head * depth)
        program.product(dense(features, depth), block.v[head].T, none_of_head, y=own, x=pooled)
    layer = dense(features, features, residual=True)
    program.product(layer, block.project.weight, block.project.bias, y=h, x=out, residual=h)


def _mlp(
    program: Program, mlp: Any, tokens: int, features: int, *, h: Any, n: Any, hidden: Any
) -> None:
    """The MLP of each token, added to ``h``."""
    program.call(kernels.normalise, tokens, features, mlp.norm.eps, to=[n, h])
    wide = mlp.fc1.out_features
    layer = dense(features, wide, places=tokens, activation="gelu")
    program.product(layer, mlp.fc1.weight, mlp.fc1.bias, y=hidden, x=n)
    layer = dense(wide, features, places=tokens, residual=True)
    program.product(layer, mlp.fc2.weight, mlp.fc2.bias, y=h, x=hidden, residual=h)
