"""What a notebook's text tells the reader to call is there to be called."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest

import minikv.lab
from tests.notebooks import rules

CALL = re.compile(r"`(?:print\()?(\w+)\(")


def told_but_not_imported(notebook: dict[str, Any]) -> set[str]:
    """Names of minikv.lab that the text calls and no cell imports."""
    text = "".join(rules.source(c) for c in notebook["cells"] if c["cell_type"] == "markdown")
    imports = [
        node
        for cell in rules.code_cells(notebook)
        for node in ast.walk(ast.parse(rules.source(cell)))
        if isinstance(node, ast.ImportFrom)
    ]
    there = {alias.name for node in imports for alias in node.names}
    return {name for name in CALL.findall(text) if name in minikv.lab.__all__} - there


@pytest.mark.parametrize("path", rules.notebook_paths(), ids=rules.name)
def test_what_the_text_calls_is_imported(path: Path) -> None:
    assert told_but_not_imported(rules.load(path)) == set()


def test_a_call_without_its_import_is_found() -> None:
    notebook = {
        "cells": [
            {"cell_type": "markdown", "source": 'Run `solution("02.slot")` or `hint("02.slot")`.'},
            {"cell_type": "code", "source": "from minikv.lab import hint"},
        ]
    }
    assert told_but_not_imported(notebook) == {"solution"}
