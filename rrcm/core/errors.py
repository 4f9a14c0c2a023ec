"""Errors that a user can fix. Any other exception is a bug and should crash loudly."""

import warnings
from collections.abc import Iterable


class RrcmError(Exception):
    """Base class of these errors; the command line prints them in one line and exits 1.

    ``retryable``: the error concerns this try only, and the same command may well go on.
    """

    def __init__(self, *args: object, retryable: bool = False) -> None:
        super().__init__(*args)
        self.retryable = retryable


class ConfigError(RrcmError):
    """``params.yaml`` has an unknown key or an invalid value."""


class DataError(RrcmError):
    """The data on disk is not what the configuration promises."""


class CheckpointError(RrcmError):
    """A trained model is missing, damaged or of another architecture."""


class TrainingError(RrcmError):
    """Training failed in a way that other settings can fix."""


class BackendError(RrcmError):
    """A runtime refused an exported model, or disagrees with it."""


class NoFunctionError(BackendError):
    """A classifier's scores depend on more than the picture, so that votes of it say nothing."""


class VotesError(RrcmError):
    """A votes file is damaged, or belongs to another classifier."""


class CertificateError(RrcmError):
    """A certificate was requested outside the conditions of its theorem."""


class StageError(RrcmError):
    """A pipeline stage cannot start, or its inputs changed while it ran."""


class PlausibilityWarning(UserWarning):
    """What was asked for is valid, and probably not what was meant."""


def warn(lines: Iterable[str], *, stacklevel: int = 1) -> None:
    """Warn of each of ``lines`` by a `PlausibilityWarning`; the command line shows it in a line."""
    for line in lines:
        warnings.warn(line, PlausibilityWarning, stacklevel=stacklevel + 1)


def printable(text: str, *, lines: bool = False) -> str:
    """Untrusted ``text`` made safe to display: unprintable characters are escaped as in Python.

    These are control characters, which a terminal would obey (with line ends unless ``lines``),
    marks that change the writing direction, and bytes that are not UTF-8.
    """
    if lines:
        return "\n".join(map(printable, text.split("\n")))
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def one_line(error: BaseException | str, *, most: int = 300) -> str:
    """Any error's message as one line of at most ``most`` characters.

    It is cut in the middle: messages begin with the place and end with the remedy.
    """
    text = str(error)
    if len(text) > 2 * most:  # before splitting: it may be the contents of a file
        text = text[:most] + text[-most:]
    text = " ".join(text.split())
    if len(text) <= most:
        return text
    end = most // 3
    return f"{text[: most - end - 3]} … {text[-end:]}"
