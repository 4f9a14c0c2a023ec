"""The page at ``/``: no other server is asked for anything, and no script runs but its own."""

from pathlib import Path

import jinja2
from fastapi.responses import HTMLResponse

from rrcm.analysis.presentation import embedded

TEMPLATE = Path(__file__).with_name("page.html.jinja")
POLICY = (
    "default-src 'none'; img-src data:; connect-src 'self'; style-src '{}'; script-src '{}'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def response(*, root_path: str, docs: bool) -> HTMLResponse:
    """The page of a server at ``root_path``; ``docs`` says whether it has ``/docs``."""
    source = TEMPLATE.read_text(encoding="utf-8")
    template = jinja2.Template(source, autoescape=True, undefined=jinja2.StrictUndefined)
    html = template.render(style=embedded.style(), root=root_path, docs=docs)
    policy = POLICY.format(*(embedded.digest(html, tag) for tag in ("style", "script")))
    return HTMLResponse(html, headers={"Content-Security-Policy": policy})
