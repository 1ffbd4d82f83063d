"""The map of the series, the glossary and the environment."""

import json

from minikv.lab.guide import GLOSSARY, Environment, environment, glossary, series


def test_every_term_has_its_chinese_one():
    assert len({term for term, _, _ in GLOSSARY}) == len(GLOSSARY)
    for term, chinese, meaning in GLOSSARY:
        assert term and meaning
        assert any("\u4e00" <= sign <= "\u9fff" for sign in chinese), term
    assert repr(glossary()).splitlines()[1].startswith("token")


def test_the_map_lists_only_what_is_there(tmp_path):
    cell = {"cell_type": "markdown", "source": "# Blocks\n\nChapter 12 §2 · about 5 minutes\n"}
    (tmp_path / "02_blocks.ipynb").write_text(json.dumps({"cells": [cell]}))
    (tmp_path / "scratch.ipynb").write_text("{}")
    assert series(tmp_path).rows == [
        ("[02_blocks](02_blocks.ipynb)", "Blocks", "chapter 12 §2 · about 5 minutes")
    ]


def test_the_environment_says_what_is_missing():
    assert environment().ok
    broken = Environment([("torch", "missing")], ["torch"])
    assert not broken.ok
    assert "Missing: torch" in repr(broken)
