"""How the documents of the repository become pages of the site."""

from __future__ import annotations

import pytest

from tools.docs.assemble import DeadLink, Places
from tools.docs.links import by_palette, coloured, relinked, titled
from tools.docs.pages import Page

PAGES = (
    Page("index.md", "README.md", "# normgen"),
    Page("how/design.md", "docs/design.md", "# How it is built"),
    Page("gallery/rmsnorm.md", "specs/rmsnorm.norm", "# rmsnorm"),
    Page("gallery/index.md", "docs/gallery/index.md", "# Gallery"),
)


def follow(text: str, source: str, path: str) -> str:
    return relinked(text, source, path, Places(PAGES))


@pytest.mark.parametrize(
    ("link", "there"),
    [
        ("docs/design.md", "how/design.md"),
        ("docs/design.md#parts", "how/design.md#parts"),
        ("specs/rmsnorm.norm", "gallery/rmsnorm.md"),
        ("docs/images/bandwidth-light.svg", "images/bandwidth-light.svg"),
        ("LICENSE", "files/LICENSE"),
        ("bench/evidence", "files/bench/evidence/README.md"),
        ("https://example.com/docs/design.md", "https://example.com/docs/design.md"),
        ("#try-it", "#try-it"),
    ],
)
def test_links_lead_on_in_the_site(link: str, there: str) -> None:
    assert follow(f"[a]({link})", "README.md", "index.md") == f"[a]({there})"


def test_links_of_deeper_pages() -> None:
    assert follow("[a](../README.md)", "docs/design.md", "how/design.md") == "[a](../index.md)"
    assert follow("[a](rmsnorm.md)", "docs/gallery/index.md", "gallery/index.md") == "[a](rmsnorm.md)"
    assert follow('<img src="images/bandwidth-dark.svg">', "docs/design.md", "how/design.md") == (
        '<img src="../images/bandwidth-dark.svg">'
    )


def test_code_is_left_alone() -> None:
    text = "`[a](docs/design.md)`\n\n```python\nx = [a](docs/design.md)\n```\n"
    assert follow(text, "README.md", "index.md") == text


def test_a_file_that_is_not_there_is_a_dead_link() -> None:
    with pytest.raises(DeadLink, match=r"docs/nowhere\.svg"):
        follow("![a](docs/nowhere.svg)", "README.md", "index.md")


def test_links_named_like_files_say_the_title() -> None:
    text = "see [docs/design.md](docs/design.md#parts) and [the design](docs/design.md)"
    assert titled(text, "README.md", Places(PAGES).title) == (
        "see [How it is built](docs/design.md#parts) and [the design](docs/design.md)"
    )


def test_blocks_of_specs_are_marked() -> None:
    spec = "norm f\ninput x[D]\n```\n"
    assert coloured(f"```\n{spec}") == f"```norm\n{spec}"
    assert coloured(f"```norm eps=1.0\n{spec}") == f"With `eps=1.0`:\n\n```norm\n{spec}"
    assert coloured(f"```text\n{spec}") == f"```text\n{spec}"


def test_pictures_follow_the_palette() -> None:
    picture = (
        '<picture>\n  <source media="(prefers-color-scheme: dark)" srcset="dark.svg">\n'
        '  <img src="light.svg"\n       alt="A plot">\n</picture>'
    )
    light, dark = by_palette(picture).split("><")
    assert "light.svg#only-light" in light and "dark.svg#only-dark" in dark
    assert light.count("A plot") == dark.count("A plot") == 1
