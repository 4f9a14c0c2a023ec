"""Every error that a user can fix, by name. Anything else is a bug and should crash loudly.

RrcmError
├── ConfigError       params.yaml says something that we do not understand
├── DataError         the data on disk is not what the configuration promises
├── CheckpointError   a trained model is missing, damaged or of another architecture
├── TrainingError     training went wrong in a way that another setting can cure
├── BackendError      a runtime refused an exported model, or disagrees with it
├── VotesError        a votes file is damaged, or belongs to another classifier
├── CertificateError  a certificate was asked outside the conditions of its theorem
└── StageError        a pipeline stage cannot start, or its inputs changed under it
"""


class RrcmError(Exception):
    """Base of the family; the command line prints these in one line and exits 1."""


class ConfigError(RrcmError):
    """``params.yaml`` says something that we do not understand."""


class DataError(RrcmError):
    """The data on disk is not what the configuration promises."""


class CheckpointError(RrcmError):
    """A trained model is missing, damaged or of another architecture."""


class TrainingError(RrcmError):
    """Training went wrong in a way that another setting can cure."""


class BackendError(RrcmError):
    """A runtime refused an exported model, or disagrees with it."""


class VotesError(RrcmError):
    """A votes file is damaged, or belongs to another classifier."""


class CertificateError(RrcmError):
    """A certificate was asked outside the conditions of its theorem."""


class StageError(RrcmError):
    """A pipeline stage cannot start, or its inputs changed while it ran."""


def printable(text: str, *, lines: bool = False) -> str:
    """``text`` as it may be shown to people, whoever wrote it: escaped where unseen.

    Escaped as Python does are control characters, which a terminal would obey, line ends among them
    unless ``lines``, marks that turn the direction of writing, and bytes that are no UTF-8.
    """
    if lines:
        return "\n".join(map(printable, text.split("\n")))
    return text if text.isprintable() else "".join(c if c.isprintable() else _said(c) for c in text)


def _said(character: str) -> str:
    return repr(character)[1:-1]


def one_line(error: BaseException | str, *, most: int = 300) -> str:
    """What an error of anybody says, in one line of at most so many characters.

    What is cut out is in the middle: a place stands at the beginning, and what to do at the end.
    """
    text = str(error)
    if len(text) > 2 * most:  # before it is split: it may be the contents of a file
        text = text[:most] + text[-most:]
    text = " ".join(text.split())
    if len(text) <= most:
        return text
    end = most // 3
    return f"{text[: most - end - 3]} … {text[-end:]}"
