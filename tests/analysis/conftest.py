import pytest

from rrcm.analysis.presentation import figures


@pytest.fixture
def undrawn(monkeypatch):
    """Figures of reports take seconds to save; here they are empty files."""
    monkeypatch.setattr(figures, "save", lambda figure, path: path.write_text("<svg></svg>"))
