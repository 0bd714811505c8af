"""Strict YAML: text to nodes with line numbers, within limits, and nothing that YAML can do beyond plain data.

Refused: tags, anchors and aliases, several documents, duplicate keys, keys that are not strings, anything too deep
or too large. Values keep the text that was written; shape.py decides what it is, so that `2.10` can be refused where
a string is wanted instead of becoming 2.1.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import yaml
from yaml.resolver import Resolver

from build.errors import MatrixError
from build.matrix.problems import Problems, Where, shown

MAX_BYTES = 256 * 1024
MAX_DEPTH = 16
MAX_NODES = 10_000
MAX_TEXT = 4096
KINDS = {"int": "number", "float": "number", "bool": "true/false value", "null": "null", "timestamp": "date"}
"""How the kinds of a scalar are called in messages."""
_PLAIN = (True, False)
_RESOLVER = Resolver()


@dataclass(frozen=True)
class Scalar:
    """A value as written. kind: what YAML takes it for: str, int, float, bool, null, timestamp, …"""

    text: str
    kind: str
    line: int


@dataclass(frozen=True)
class Sequence:
    """A list."""

    line: int
    items: list[Node] = field(default_factory=list)


@dataclass(frozen=True)
class Mapping:
    """A mapping, in the order of the file."""

    line: int
    items: dict[str, Node] = field(default_factory=dict)
    key_lines: dict[str, int] = field(default_factory=dict)


Node = Scalar | Sequence | Mapping


def read_text(path: Path, shown_name: str) -> str:
    """The file's text. Raises MatrixError for a file that is missing, not a plain file, too large or not UTF-8."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise MatrixError(f"{shown_name} is not a plain file")
        with path.open("rb") as handle:
            data = handle.read(MAX_BYTES + 1)
    except (OSError, ValueError) as problem:
        why = problem.strerror if isinstance(problem, OSError) and problem.strerror else str(problem)
        raise MatrixError(
            f"{shown_name} cannot be read: {why}", next_step="run from a clone of the repository"
        ) from problem
    if len(data) > MAX_BYTES:
        raise MatrixError(f"{shown_name} is larger than {MAX_BYTES // 1024} KiB, which no matrix needs")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        line = data[: problem.start].count(b"\n") + 1
        raise MatrixError(
            f"{shown_name}:{line}: not UTF-8 text (byte 0x{data[problem.start]:02x})",
            next_step="save the file as UTF-8",
        ) from problem


def parse(text: str, problems: Problems) -> Node | None:
    """The one document of `text`; None if it is empty or cannot be parsed, in which case `problems` says why."""
    try:
        return _Builder(problems).build(yaml.parse(text, Loader=yaml.SafeLoader))
    except yaml.MarkedYAMLError as problem:
        mark = problem.problem_mark or problem.context_mark
        why = " ".join(part for part in (problem.context, problem.problem) if part)
        problems.add((), f"not YAML: {why}", line=mark.line + 1 if mark else 1)
    except yaml.reader.ReaderError as problem:
        line = text[: problem.position].count("\n") + 1
        problems.add((), f"not YAML: the character {shown(chr(problem.character))} is not allowed", line=line)
    except (ValueError, OverflowError) as problem:
        # PyYAML's scanner turns escapes such as "\UFFFFFFFF" and overlong version numbers into numbers unguarded.
        problems.add((), f"not YAML: an escape or number that does not exist ({shown(str(problem))})")
    except _TooMuch:
        pass
    return None


class _TooMuch(Exception):
    """A limit was passed; `problems` says which."""


@dataclass
class _Open:
    """A collection whose end has not been reached. key: the key whose value comes next; None before a key."""

    node: Mapping | Sequence
    where: Where
    key: str | None = None
    duplicate: bool = False


class _Builder:
    """Builds nodes from PyYAML's events with a stack of its own, so that depth cannot exhaust Python's."""

    def __init__(self, problems: Problems) -> None:
        self.problems = problems
        self.stack: list[_Open] = []
        self.root: Node | None = None
        self.count = 0

    def build(self, events: Iterator[yaml.Event]) -> Node | None:
        documents = 0
        for event in events:
            line = event.start_mark.line + 1 if event.start_mark else 1
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self.stop("a second document starts here; the matrix is one document", line)
            elif isinstance(event, yaml.AliasEvent):
                self.problems.add(self.where(), "aliases (*name) are not accepted: write the value out", line=line)
                self.place(Scalar("", "alias", line), line)
            elif isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent):
                self.begin(event, line)
            elif isinstance(event, yaml.CollectionEndEvent):
                self.stack.pop()
        return self.root

    def begin(self, event: yaml.ScalarEvent | yaml.CollectionStartEvent, line: int) -> None:
        """A scalar, or the start of a collection."""
        self.count += 1
        if self.count > MAX_NODES:
            self.stop(f"more than {MAX_NODES} values", line)
        if event.anchor is not None:
            self.problems.add(self.where(), "anchors (&name) are not accepted: write the value out", line=line)
        if event.tag is not None:
            self.problems.add(self.where(), f"tags are not accepted: remove {shown(event.tag)}", line=line)
        if isinstance(event, yaml.ScalarEvent):
            self.place(self.scalar(event, line), line)
            return
        if len(self.stack) >= MAX_DEPTH:
            self.stop(f"nested more than {MAX_DEPTH} deep", line)
        node = Mapping(line) if isinstance(event, yaml.MappingStartEvent) else Sequence(line)
        where = self.place(node, line)
        self.stack.append(_Open(node, where))

    def scalar(self, event: yaml.ScalarEvent, line: int) -> Scalar:
        text: str = event.value
        if len(text) > MAX_TEXT:
            self.problems.add(self.where(), f"a value of more than {MAX_TEXT} characters", line=line)
            text = text[:MAX_TEXT]
        if event.style is not None:
            return Scalar(text, "str", line)
        tag: str = _RESOLVER.resolve(yaml.ScalarNode, text, _PLAIN)  # type: ignore[no-untyped-call]
        return Scalar(text, tag.rsplit(":", 1)[-1], line)

    def place(self, node: Node, line: int) -> Where:
        """Put a node where it belongs, and give its place. In a mapping it is a key or a value by turns."""
        if not self.stack:
            self.root = node
            return ()
        top = self.stack[-1]
        if isinstance(top.node, Sequence):
            where = (*top.where, len(top.node.items))
            top.node.items.append(node)
            self.problems.lines[where] = line
            return where
        if top.key is None:
            self.key(top, node, line)
            return (*top.where, "?")
        where = (*top.where, top.key)
        if not top.duplicate:
            top.node.items[top.key] = node
        top.key = None
        return where

    def key(self, top: _Open, node: Node, line: int) -> None:
        """Take a node as the next key of a mapping."""
        assert isinstance(top.node, Mapping)
        known = top.node.key_lines
        top.key, top.duplicate = "?", True
        if not isinstance(node, Scalar):
            self.problems.add(top.where, "a list or mapping cannot be a key", line=line)
        elif node.kind != "str":
            if node.kind != "alias":
                kind = KINDS.get(node.kind, node.kind)
                text = f"the key {shown(node.text)} is a {kind} to YAML: put it in quotes"
                self.problems.add(top.where, text, line=line)
        elif node.text in known:
            text = f"the key {shown(node.text)} stands here and on line {known[node.text]}: remove one"
            self.problems.add((*top.where, node.text), text, line=line)
        else:
            top.key, top.duplicate = node.text, False
            known[node.text] = line
            self.problems.lines[(*top.where, node.text)] = line

    def where(self) -> Where:
        """The place of the value that comes next, for a problem."""
        if not self.stack:
            return ()
        top = self.stack[-1]
        if isinstance(top.node, Sequence):
            return (*top.where, len(top.node.items))
        return (*top.where, top.key) if top.key is not None else top.where

    def stop(self, text: str, line: int) -> None:
        self.problems.add((), text, line=line)
        raise _TooMuch
