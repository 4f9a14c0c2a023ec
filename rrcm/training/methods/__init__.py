"""Training methods: labelled images in, loss per example out. One file each.

A method may also have functions that keep something of each training image, seen without
augmentation; it is saved with the state, so that a training resumes exactly (`State.kept`):

- ``table(frequencies, cfg) -> [N, ...]``, called before the first step. ``frequencies(draws)`` are
  a teacher's class frequencies, [N, K]. ``loss`` gets the rows of its images as ``table``.
- ``weigh(weights, correct, *, epoch, epochs, cfg) -> [N] or None``, called when an epoch begins,
  with the weights of the one before, or None. It returns those of this one (`order.rows`); 0 leaves
  an image out. ``correct(draws, rows)`` counts how many fresh noisy copies of each image of
  ``rows``, by default of all, the network in training classifies correctly, [n].
"""
