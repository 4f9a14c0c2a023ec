"""The inference form of a ViT at one sigma (rrcm/models/folding/vit.py) as a program."""

from typing import Any, NamedTuple

import torch

from rrcm.inference.lanes import kernels
from rrcm.inference.lanes.kernels import Layer, Pairs, dense
from rrcm.inference.lanes.program import Compiled, Machine, Program


class Room(NamedTuple):
    """Sizes of a ViT, and the buffers that its blocks share, in numbers of one image.

    ``h`` are the tokens, which each block adds to, and ``n`` the same after a layer norm. ``qkv``
    are queries, keys and values, ``looks`` the attention of one head, ``out`` what the heads give;
    ``hidden`` is within an MLP.
    """

    tokens: int
    features: int
    h: Any
    n: Any
    qkv: Any
    looks: Any
    out: Any
    hidden: Any


def build(network: Any, shape: tuple[int, int, int], machine: Machine) -> Compiled:
    """The program of ``network``, a `FoldedAtSigma`, for images of ``shape`` [C, H, W]."""
    channels, height, width = shape
    trunk, side = network.trunk, network.trunk.patch_size
    tokens, features = network.start.shape
    program = Program(machine, pixels=channels * height * width, classes=trunk.head.out_features)
    x = program.buffer(program.pixels)
    own = tokens * features
    buffers = map(program.buffer, (own, own, 3 * own, tokens**2, own, 4 * own))
    room = Room(tokens, features, *buffers)
    program.call(kernels.lanes_of, program.pixels, to=[x, program.images])
    program.call(kernels.fill, 2 * features, to=[room.h, program.constant(network.start[:2])])
    patches = Layer(
        outputs=features,
        steps=((channels, height * width), (side, width), (side, 1)),
        places=((height // side, side * width), (width // side, side)),
        starts=True,
    )
    rest = program.code.within(room.h, 2 * features)
    program.product(patches, network.kernel.T, network.start[2:], y=rest, x=x)
    for block in trunk.blocks:
        _attend(program, block, room)
        _mlp(program, block.mlp, room, tokens=tokens)
    _attend_once(program, trunk.last, room)
    _mlp(program, trunk.last.mlp, room, tokens=1)
    if isinstance(trunk.norm, torch.nn.LayerNorm):
        program.call(kernels.normalise, 1, features, trunk.norm.eps, to=[room.h, room.h])
    program.linear(trunk.head, y=program.scores, x=room.h)
    return program.compile()


def _attend(program: Program, block: Any, room: Room) -> None:
    """Attention of all tokens to each other, added to ``room.h``."""
    code, tokens, features = program.code, room.tokens, room.features
    depth = features // block.heads
    program.call(kernels.normalise, tokens, features, block.norm.eps, to=[room.n, room.h])
    program.linear(block.qkv, y=room.qkv, x=room.n, places=tokens)
    towards = Pairs(
        shape=(tokens, tokens, depth), a=(3 * features, 1), b=(3 * features, 1), c=tokens
    )
    mixed = Pairs(shape=(tokens, depth, tokens), a=(tokens, 1), b=(1, 3 * features), c=features)
    with code.loop(block.heads) as head:
        at = code.times(head, depth)
        q, k, v = (code.within(room.qkv, code.plus(at, i * features)) for i in range(3))
        program.call(kernels.pairs, towards, to=[room.looks, q, k])
        program.call(kernels.softmax, tokens, tokens, to=[room.looks])
        program.call(kernels.pairs, mixed, to=[code.within(room.out, at), room.looks, v])
    program.linear(block.project, y=room.h, x=room.out, places=tokens, residual=room.h)


def _attend_once(program: Program, block: Any, room: Room) -> None:
    """Attention of the cls token, which attends to the normed tokens themselves."""
    code, tokens, features = program.code, room.tokens, room.features
    depth = features // block.heads
    program.call(kernels.normalise, tokens, features, block.norm.eps, to=[room.n, room.h])
    program.linear(block.q, y=room.qkv, x=room.n)
    none, none_of_head = torch.zeros(features), torch.zeros(depth)
    seen, pooled = (code.within(room.qkv, i * features) for i in (1, 2))  # behind the query
    towards = Pairs(shape=(1, tokens, features), a=(features, 1), b=(features, 1), c=tokens)
    mixed = Pairs(shape=(1, features, tokens), a=(tokens, 1), b=(1, features), c=features)
    for head in range(block.heads):
        own = code.within(room.qkv, head * depth)
        program.product(dense(depth, features), block.k[head].T, none, y=seen, x=own)
        program.call(kernels.pairs, towards, to=[room.looks, seen, room.n])
        program.call(kernels.softmax, 1, tokens, to=[room.looks])
        program.call(kernels.pairs, mixed, to=[pooled, room.looks, room.n])
        own = code.within(room.out, head * depth)
        program.product(dense(features, depth), block.v[head].T, none_of_head, y=own, x=pooled)
    program.linear(block.project, y=room.h, x=room.out, residual=room.h)


def _mlp(program: Program, mlp: Any, room: Room, *, tokens: int) -> None:
    """The MLP of the first ``tokens`` tokens, added to ``room.h``."""
    program.call(kernels.normalise, tokens, room.features, mlp.norm.eps, to=[room.n, room.h])
    program.linear(mlp.fc1, y=room.hidden, x=room.n, places=tokens, activation="gelu")
    program.linear(mlp.fc2, y=room.h, x=room.hidden, places=tokens, residual=room.h)
