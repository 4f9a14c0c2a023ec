"""What is read of DVC's messages is what the installed DVC says."""

import importlib
import inspect

import dvc
import pytest

from pipeline.workflow import dvc_says


@pytest.mark.parametrize("name", dvc_says.ALL)
def test_dvc_words_its_messages_as_before(name: str):
    message = dvc_says.ALL[name]
    source = inspect.getsource(importlib.import_module(message.module))

    assert message.text in source, (
        f"DVC {dvc.__version__}: {message.module} does not say {message.text!r}; see what it says "
        f"instead, and renew {name} in pipeline/workflow/dvc_says.py"
    )
