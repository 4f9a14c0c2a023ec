"""Pre-training objectives: unlabelled views in, loss per example out. One file each.

An objective has ``VIEWS``, keys of ``augment``; ``Config``, its constants; ``heads``, modules that
are trained beside the encoder, for the network's module ``models`` and its ``shape``; ``targets``,
EMA networks by name: the online module each follows, and its momentum (None: scheduled); and
``loss``, whose arguments are

- ``online``, the modules ``encoder`` (pixels, sigma) -> [b, D] and the heads, and ``target``, the
  EMA networks, which get no gradient;
- ``views``: pixels in [0, 1], [b, C, H, W] for each of ``VIEWS``;
- ``levels``: noise levels t = 2 sigma of the grid, descending, float64 [N]; the last is the clean
  end; ``weights`` [N - 1]: relative frequency of each pair of neighbours, None is uniform;
- ``draw``: the randomness of the step; ``cfg``: constants.

It returns terms, [b] each, whose sum is minimised, and diagnostics of the step.
"""
