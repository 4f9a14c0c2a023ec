"""State dicts with the names and shapes of the reference implementation's."""

import torch

SIDE, PATCH, CHANNELS, WIDTH, DEPTH, HEADS, CLASSES, HIDDEN = 12, 4, 3, 48, 2, 4, 5, 20


def encoder():
    """A state dict such as pre-training writes, drawn by hand, of 48 x 2 x 4 heads."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape, scale=1.0, centre=0.0):
        return centre + scale * torch.randn(*shape, generator=generator)

    d, tokens = WIDTH, 2 + (SIDE // PATCH) ** 2
    state = {"cls_token": draw(1, 1, d), "pos_embed": draw(1, tokens, d)}
    state["patch_embed.proj.weight"] = draw(d, CHANNELS, PATCH, PATCH, scale=0.3)
    state["patch_embed.proj.bias"] = draw(d)
    for i in range(DEPTH):
        for norm in ("norm1", "norm2"):
            state[f"blocks.{i}.{norm}.weight"] = draw(d, scale=0.3, centre=1.0)
            state[f"blocks.{i}.{norm}.bias"] = draw(d, scale=0.3)
        state[f"blocks.{i}.attn.qkv.weight"] = draw(3 * d, d, scale=d**-0.5)
        for name, rows, columns in (
            ("attn.proj", d, d),
            ("mlp.fc1", 4 * d, d),
            ("mlp.fc2", d, 4 * d),
        ):
            state[f"blocks.{i}.{name}.weight"] = draw(rows, columns, scale=columns**-0.5)
            state[f"blocks.{i}.{name}.bias"] = draw(rows, scale=0.3)
    state["norm.weight"], state["norm.bias"] = draw(d, centre=1.0), draw(d)
    for layer, rows, columns in ((0, HIDDEN, d), (3, HIDDEN, HIDDEN), (6, 256, HIDDEN)):
        state[f"projection_head.{layer}.weight"] = draw(rows, columns)
        if layer < 6:
            for part in ("weight", "bias", "running_mean", "running_var"):
                state[f"projection_head.{layer + 1}.{part}"] = draw(HIDDEN).abs()
            state[f"projection_head.{layer + 1}.num_batches_tracked"] = torch.tensor(7)
    return state


def tuned():
    """A state dict such as fine-tuning writes."""
    generator = torch.Generator().manual_seed(1)
    head = {
        "linear_head.weight": torch.randn(CLASSES, WIDTH, generator=generator) / WIDTH**0.5,
        "linear_head.bias": torch.randn(CLASSES, generator=generator),
    }
    return {f"base_model.{name}": t for name, t in encoder().items()} | head
