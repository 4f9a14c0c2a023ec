"""The page at ``/``, in a browser: what it shows is what the server answers."""

import dataclasses
import re

import httpx
import pytest
from browsers import flaws, served, tab
from linear_smoothed import FEW, PICTURE, Slow, classifier

SECRET = "0123456789abcdef"
HOSTILE = ["</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>", "ünï & \u202ecode"]
# A file that the script of the page drops, as a hand would.
DROP = """([kind, bytes]) => {
    const data = new DataTransfer();
    data.items.add(new File([new Uint8Array(bytes)], "<img src=x onerror=alert(1)>.png"));
    const how = {bubbles: true, cancelable: true};
    how[kind === "drop" ? "dataTransfer" : "clipboardData"] = data;
    document.body.dispatchEvent(new (kind === "drop" ? DragEvent : ClipboardEvent)(kind, how));
}"""
FILE = {"name": "a.png", "mimeType": "image/png", "buffer": PICTURE}


@pytest.fixture(scope="module")
def address():
    """A server of classes with hostile names."""
    smoothed = classifier()
    smoothed.backend.classes = HOSTILE
    with served(smoothed) as found:
        yield found


def answered(page) -> str:
    page.locator("#answer", has_text="within radius").wait_for()
    return page.locator("#answer").inner_text()


def test_a_picture_ends_in_the_answer_of_the_api(browser, address: str):
    want = httpx.post(f"{address}/certify", content=PICTURE, timeout=60).json()
    with tab(browser, address) as page:
        assert flaws(page) == []
        for how in ("drop", "paste", "choose"):
            if how == "choose":
                page.set_input_files("#file", files=[FILE])
            else:
                page.evaluate(DROP, [how, list(PICTURE)])
            assert answered(page) == f"{want['name']}, within radius {want['radius']}"
            stopped = f"Stopped after {want['n']} of at most 400 draws: {want['stop']}, "
            assert stopped in page.locator("#drawn").inner_text()
            votes = page.locator("#votes > *").all_inner_texts()
            assert votes[votes.index(want["name"]) + 2] == str(want["n_A"])
            copies = page.locator("#copies strong").all_inner_texts()
            assert len(copies) == 8 and {*copies} <= {*HOSTILE}
            assert want["seed"] in page.locator("#facts").inner_text()
            assert page.locator("#curve circle").count() > 1
            page.locator("#answer").evaluate("node => node.textContent = ''")
        assert flaws(page) == []


def test_votes_fill_up_and_another_picture_takes_the_place_of_the_first(browser):
    endless = classifier(Slow, dataclasses.replace(FEW, n=10_000, stopping={"radii": [0.0, 0.28]}))
    with served(endless) as address, tab(browser, address, loud=True) as page:
        page.set_input_files("#file", files=[FILE])
        seen = []
        while len({*seen}) < 3:
            assert page.locator("#answer").inner_text() == "Drawing …"
            seen += re.findall("^[1-9].* of at most 10,000", page.locator("#drawn").inner_text())
        page.set_input_files("#file", files=[FILE | {"buffer": b"no picture"}])
        page.locator("#problem", has_text="No answer. the picture: not a PNG").wait_for()


def test_a_token_is_asked_for_and_kept_in_the_tab_alone(browser):
    with served(classifier(), tokens=(SECRET.encode(),)) as address:
        with tab(browser, address, loud=True) as page:
            for token in ("wrong-wrong-wrong", SECRET):
                page.fill("#token", token)
                page.keyboard.press("Enter")
                if token != SECRET:
                    page.get_by_text("This is no token of the server").wait_for()
            page.locator("#key").wait_for(state="hidden")
            page.set_input_files("#file", files=[FILE])
            answered(page)
            kept = "[sessionStorage.token, localStorage.length, document.cookie]"
            assert page.evaluate(kept) == [SECRET, 0, ""]
            assert page.locator("a").count() == 0, "there is no /docs"


def test_behind_a_proxy_and_in_its_documentation_it_asks_its_own_server_alone(browser):
    with served(classifier(), root_path="/certified") as address:
        for path in ("/certified", "/certified/"):
            with tab(browser, f"{address}{path}") as page:
                page.set_input_files("#file", files=[FILE])
                answered(page)
        page = httpx.get(f"{address}/certified", timeout=60)
        with tab(browser, f"{address}/certified/docs") as docs:
            docs.get_by_text("/watch").wait_for()
    assert page.headers["content-security-policy"] == "frame-ancestors 'none'"
    policy = re.search(r'Security-Policy" content="(.*?)"', page.text, re.DOTALL)[1]
    assert policy.startswith(
        "default-src 'none'; img-src data:; connect-src 'self'; style-src 'sha"
    )
    assert "unsafe" not in policy and not re.search(
        r"\son\w+=|\sstyle=|https?:(?!//www.w3)", page.text
    )
