"""Pictures in notebooks: an image that scales, which is the SVG that was drawn."""

import re
from html.parser import HTMLParser
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest

from minikv.lab.experiment_timeline import Drawing
from minikv.lab.fitted import Fitted, fitted
from minikv.lab.modes_picture import MemoryPicture, Span
from minikv.lab.plots import lines
from minikv.lab.plots_memory import MemoryBars

PICTURES = (
    MemoryPicture(
        8, [Span("A", 1, 3, ("Bo", "says", "“it's 100 % #1 & <so>”"))], ["·", "Bo", *"·" * 6], 'A "few"'
    ),
    MemoryBars("Bars", {"one": {"tokens": 40.0, "free": 60.0}}),
    Drawing(lines("The slices' time", ("n", [1, 2, 3]), "n²", {"a & b": [1, 4, 9]})),
)


def image(bundle):
    found = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag, attributes):
            found.append((tag, dict(attributes)))

    Reader().feed(bundle["text/html"])
    ((tag, attributes),) = found
    assert tag == "img"
    return attributes


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: type(picture).__name__)
def test_the_image_is_what_was_drawn(picture, monkeypatch):
    svg = picture.to_svg()
    monkeypatch.setattr(picture, "to_svg", lambda: svg)  # a plot's layout is not the same a second time
    bundle = fitted(picture)
    assert set(bundle) == {"text/html", "text/plain"}
    attributes = image(bundle)
    assert attributes["alt"] == bundle["text/plain"] == repr(picture)
    assert attributes["style"] == "max-width:100%"
    kind, _, written = attributes["src"].partition(",")
    assert kind == "data:image/svg+xml;charset=utf-8" and not set('#"<>\n') & set(written)
    drawn, shown = (ElementTree.fromstring(each) for each in (svg, unquote(written)))
    parts = [[each for each in root.iter() if not each.tag.endswith("desc")] for root in (drawn, shown)]
    for a, b in zip(*parts, strict=True):
        assert a.tag == b.tag and a.attrib.keys() == b.attrib.keys()
        if not a.tag.endswith("style"):
            assert a.text == b.text
        for name, value in a.attrib.items():
            assert b.attrib[name].replace('"', "'") == value.replace('"', "'")


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: type(picture).__name__)
def test_the_colours_that_are_used_stay_in_both_themes(picture):
    svg = unquote(image(fitted(picture))["src"])
    used = set(re.findall(r"var\(--mk-([\w-]+)", svg))
    assert used and used == set(re.findall(r"--mk-([\w-]+):[^;]*light-dark", svg))
    assert "color-scheme: light dark" in svg and len(fitted(picture)["text/html"]) < 1.2 * len(
        picture.to_svg()
    )


def test_any_picture_can_be_shown_so():
    bars = PICTURES[1]
    assert Fitted(bars)._repr_mimebundle_() == fitted(bars) and repr(Fitted(bars)) == repr(bars)
