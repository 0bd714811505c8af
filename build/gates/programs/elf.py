"""What the gates need from a 64-bit little-endian ELF file: NEEDED, search paths, soname, dynamic symbols, versions."""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

_SHT_DYNAMIC, _SHT_DYNSYM, _SHT_VERNEED, _SHT_VERSYM = 6, 11, 0x6FFFFFFE, 0x6FFFFFFF
_DT_NEEDED, _DT_SONAME, _DT_RPATH, _DT_RUNPATH = 1, 14, 15, 29
_STB_WEAK = 2


class NotElf(ValueError):
    """The file is not a 64-bit little-endian ELF object with a section table."""


@dataclass(frozen=True)
class Symbol:
    """A dynamic symbol. version: the symbol version that an undefined symbol asks for ("GLIBCXX_3.4.21"), or ""."""

    name: str
    defined: bool
    weak: bool
    version: str = ""


@dataclass(frozen=True)
class Elf:
    """A shared object. search: RUNPATH, or RPATH where there is none, split at the colons, $ORIGIN not expanded."""

    soname: str
    needed: tuple[str, ...]
    search: tuple[str, ...]
    symbols: tuple[Symbol, ...]


@dataclass(frozen=True)
class _Section:
    kind: int
    offset: int
    size: int
    link: int


def is_elf(path: Path) -> bool:
    """Does the file start like an ELF file? Raises OSError when it cannot be read."""
    with path.open("rb") as handle:
        return handle.read(4) == b"\x7fELF"


def read_elf(path: Path, *, symbols: bool = True) -> Elf:
    """Read a shared object. Raises NotElf, and OSError when the file cannot be read."""
    with path.open("rb") as handle:
        try:
            data = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError as empty:
            raise NotElf(f"{path} is empty") from empty
        with data:
            try:
                return _parse(data, symbols)
            except (struct.error, IndexError, OverflowError) as broken:
                raise NotElf(f"{path} is not a whole 64-bit ELF file: {broken}") from broken


def _parse(data: mmap.mmap, symbols: bool) -> Elf:
    if data[:6] != b"\x7fELF\x02\x01":
        raise NotElf("the file is not a 64-bit little-endian ELF object")
    (table,) = struct.unpack_from("<Q", data, 0x28)
    entry_size, count = struct.unpack_from("<HH", data, 0x3A)
    sections = []
    for index in range(count):
        _, kind, _, _, offset, size, link = struct.unpack_from("<IIQQQQI", data, table + index * entry_size)
        sections.append(_Section(kind, offset, size, link))
    by_kind = {section.kind: section for section in sections}
    if _SHT_DYNAMIC not in by_kind:
        raise NotElf("the file has no dynamic section")
    dynamic = by_kind[_SHT_DYNAMIC]
    words = sections[dynamic.link]
    entries = [
        (tag, _text(data, words, value))
        for tag, value in struct.iter_unpack("<QQ", data[dynamic.offset : dynamic.offset + dynamic.size])
        if tag in (_DT_NEEDED, _DT_SONAME, _DT_RPATH, _DT_RUNPATH)
    ]
    values = {wanted: [text for tag, text in entries if tag == wanted] for wanted, _ in entries}
    search = values.get(_DT_RUNPATH) or values.get(_DT_RPATH) or []
    return Elf(
        soname=(values.get(_DT_SONAME) or [""])[0],
        needed=tuple(values.get(_DT_NEEDED, [])),
        search=tuple(part for text in search for part in text.split(":") if part),
        symbols=_symbols(data, sections, by_kind) if symbols else (),
    )


def _text(data: mmap.mmap, table: _Section, offset: int) -> str:
    start = table.offset + offset
    end = data.find(b"\0", start, table.offset + table.size)
    return data[start:end].decode(errors="replace")


def _symbols(data: mmap.mmap, sections: list[_Section], by_kind: dict[int, _Section]) -> tuple[Symbol, ...]:
    if _SHT_DYNSYM not in by_kind:
        return ()
    table = by_kind[_SHT_DYNSYM]
    names = sections[table.link]
    versions = _versions(data, sections, by_kind)
    versym = by_kind.get(_SHT_VERSYM)
    found = []
    raw = data[table.offset : table.offset + table.size]
    for index, (name, info, _, section, _, _) in enumerate(struct.iter_unpack("<IBBHQQ", raw)):
        if not name:
            continue
        number = struct.unpack_from("<H", data, versym.offset + 2 * index)[0] & 0x7FFF if versym else 0
        defined = section != 0
        found.append(
            Symbol(
                _text(data, names, name),
                defined,
                weak=info >> 4 == _STB_WEAK,
                version="" if defined else versions.get(number, ""),
            )
        )
    return tuple(found)


def _versions(data: mmap.mmap, sections: list[_Section], by_kind: dict[int, _Section]) -> dict[int, str]:
    """Version index -> version that is asked of another library (the section .gnu.version_r)."""
    section = by_kind.get(_SHT_VERNEED)
    found: dict[int, str] = {}
    if section is None:
        return found
    names = sections[section.link]
    entry = section.offset
    while True:
        _, count, _, first, following = struct.unpack_from("<HHIII", data, entry)
        part = entry + first
        for _ in range(count):
            _, _, number, name, step = struct.unpack_from("<IHHII", data, part)
            found[number] = _text(data, names, name)
            part += step
        if not following:
            return found
        entry += following
