"""What the pages under docs say that can be checked without running it: commands, options, imports, links."""

import ast
import re
import textwrap
from importlib import import_module
from pathlib import Path

import click
import pytest

from recap.cli.main import cli

ROOT = Path(__file__).parent.parent
PAGES = sorted([*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md")])
pages = pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])


def blocks(page: Path, language: str) -> list[str]:
    """Return what stands in a page between fences, of one language."""
    fenced = re.findall(r"^ *```(\w*)\n(.*?)^ *```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(text) for kind, text in fenced if kind == language]


def commands(page: Path) -> list[list[str]]:
    """Return the commands of a page, in words; lines that end in a backslash go on."""
    text = "".join(blocks(page, "sh") + blocks(page, "bash") + blocks(page, "")).replace("\\\n", " ")
    return [line.split("#")[0].split("|")[0].split() for line in text.splitlines() if line.strip().startswith("recap ")]


@pages
def test_commands_and_their_options_exist(page: Path):
    for words in commands(page):
        command: click.Command = cli
        for word in words[1:]:
            if isinstance(command, click.Group) and not word.startswith("-"):
                assert word in command.commands, f"{' '.join(words)}: no command {word}"
                command = command.commands[word]
        known = {name for option in command.params for name in (*option.opts, *option.secondary_opts)}
        for word in words:
            if re.match(r"--?[a-z]", word):
                assert word.partition("=")[0] in {*known, "--help", "--version"}, " ".join(words)


@pages
def test_imports_exist(page: Path):
    for code in blocks(page, "python"):
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "recap":
                try:
                    module = import_module(str(node.module))
                except ImportError as error:
                    if (error.name or "recap").startswith("recap"):
                        raise
                    continue  # an optional part that is not installed
                assert all(hasattr(module, name.name) for name in node.names), ast.unparse(node)


@pages
def test_links_lead_somewhere(page: Path):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if not re.match(r"[a-z]+:|#", target):
            assert (page.parent / target.partition("#")[0]).exists(), target


def test_there_is_something_to_check():
    assert sum(len(commands(page)) for page in PAGES) > 50


def test_what_the_readme_says_it_reaches_is_among_the_results():
    readme, results = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/results.md"))
    section = readme[readme.index("## What it reaches") : readme.index("## The paper")]
    rows = [line for line in section.splitlines() if line.startswith("|")][2:]
    numbers = [number for row in rows for number in re.findall(r"\d+\.\d+", row)]
    assert len(numbers) >= 10
    assert not [number for number in numbers if number not in results]
