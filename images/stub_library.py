"""Write a stand-in for a shared library: the same name, symbols and versions, and no code.

PyPI's torch for Linux links the CUDA libraries, so that `import torch` maps all of them, on a machine without a GPU
too, where nothing ever calls them. A stand-in keeps the loader content at a thousandth of the size. Every function
returns 1, which each of these libraries defines as an error ("not initialized" and the like); every variable is zero.

The format is the ELF64 of the System V ABI (little endian). Symbol names, hash table and versions are copied as they
are, since they depend on names and order only; just the symbols' addresses change.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

SECTION_KINDS = {0x6FFFFFF6: "gnu_hash", 0x6FFFFFFD: "verdef", 0x6FFFFFFF: "versym", 6: "dynamic", 11: "dynsym"}
DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_SYMENT, DT_SONAME = 5, 6, 10, 11, 14
DT_GNU_HASH, DT_VERSYM, DT_VERDEF, DT_VERDEFNUM = 0x6FFFFEF5, 0x6FFFFFF0, 0x6FFFFFFC, 0x6FFFFFFD
STT_OBJECT, STT_FUNC, STT_TLS, STT_GNU_IFUNC = 1, 2, 6, 10
PT_LOAD, PT_DYNAMIC, PT_GNU_STACK = 1, 2, 0x6474E551
READ_EXECUTE, READ_WRITE = 5, 6
RETURN_ONE = bytes.fromhex("b801000000c3")  # x86-64: mov eax, 1; ret
PAGE_BYTES = 4096


class Unsupported(ValueError):
    """The library has something that a stand-in cannot have."""


class Section(NamedTuple):
    content: bytes
    link: int
    info: int


def read_sections(library: bytes) -> tuple[dict[str, Section], bytes]:
    """The dynamic sections by kind, and the string table that the symbol table refers to."""
    if library[:6] != b"\x7fELF\x02\x01" or library[18:20] != b"\x3e\x00":
        raise Unsupported("not a little-endian x86-64 ELF file")
    (table,) = struct.unpack_from("<Q", library, 40)
    entry_bytes, count = struct.unpack_from("<HH", library, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", library, table + i * entry_bytes) for i in range(count)]

    def content(header: tuple[int, ...]) -> bytes:
        return library[header[4] : header[4] + header[5]]

    found = {SECTION_KINDS[h[1]]: Section(content(h), h[6], h[7]) for h in headers if h[1] in SECTION_KINDS}
    if missing := {"gnu_hash", "versym", "dynamic", "dynsym"} - set(found):
        raise Unsupported(f"no section {', '.join(sorted(missing))}")
    return found, content(headers[found["dynsym"].link])


def relocate(symbols: bytes, code_address: int, data_address: int) -> tuple[bytes, int]:
    """The symbol table with every function at code_address and every variable in zeroed memory from data_address on.

    Returns the table and how many bytes of zeroed memory it needs. Raises Unsupported for thread-local variables.
    """
    table, data_bytes = bytearray(), 0
    for name, info, other, section, _value, size in struct.iter_unpack("<IBBHQQ", symbols):
        kind, binding = info & 15, info & 0xF0
        value = 0
        if section:
            if kind == STT_TLS:
                raise Unsupported("exports a thread-local variable")
            if kind == STT_OBJECT:
                value = data_address + data_bytes
                data_bytes += -(-size // 16) * 16
            elif kind in (STT_FUNC, STT_GNU_IFUNC):
                kind, value = STT_FUNC, code_address
        table += struct.pack("<IBBHQQ", name, binding | kind, other, section, value, size)
    return bytes(table), data_bytes


def stand_in(library: bytes) -> bytes:
    """The file of the stand-in for the file of a library."""
    sections, strings = read_sections(library)
    soname = next(value for tag, value in struct.iter_unpack("<qQ", sections["dynamic"].content) if tag == DT_SONAME)
    parts = {
        "code": RETURN_ONE,
        "symtab": sections["dynsym"].content,
        "strtab": strings,
        "gnu_hash": sections["gnu_hash"].content,
        "versym": sections["versym"].content,
        "verdef": sections["verdef"].content if "verdef" in sections else b"",
    }
    header_bytes = 64 + 4 * 56
    address, end = {}, header_bytes
    for name, part in parts.items():
        address[name] = -(-end // 16) * 16
        end = address[name] + len(part)
    dynamic_address = -(-end // PAGE_BYTES) * PAGE_BYTES
    tags = [
        (DT_SONAME, soname),
        (DT_GNU_HASH, address["gnu_hash"]),
        (DT_STRTAB, address["strtab"]),
        (DT_SYMTAB, address["symtab"]),
        (DT_STRSZ, len(strings)),
        (DT_SYMENT, 24),
        (DT_VERSYM, address["versym"]),
    ]
    if parts["verdef"]:
        tags += [(DT_VERDEF, address["verdef"]), (DT_VERDEFNUM, sections["verdef"].info)]
    dynamic = b"".join(struct.pack("<qQ", *tag) for tag in [*tags, (0, 0)])
    parts["symtab"], data_bytes = relocate(parts["symtab"], address["code"], dynamic_address + len(dynamic))

    def segment(kind: int, flags: int, at: int, file_bytes: int, memory_bytes: int, align: int) -> bytes:
        return struct.pack("<IIQQQQQQ", kind, flags, at, at, at, file_bytes, memory_bytes, align)

    image = bytearray(dynamic_address + len(dynamic))
    image[:64] = library[:16] + struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 4, 64, 0, 0)
    image[64:header_bytes] = (
        segment(PT_LOAD, READ_EXECUTE, 0, end, end, PAGE_BYTES)
        + segment(PT_LOAD, READ_WRITE, dynamic_address, len(dynamic), len(dynamic) + data_bytes, PAGE_BYTES)
        + segment(PT_DYNAMIC, READ_WRITE, dynamic_address, len(dynamic), len(dynamic), 8)
        + segment(PT_GNU_STACK, READ_WRITE, 0, 0, 0, 16)
    )
    for name, part in parts.items():
        image[address[name] : address[name] + len(part)] = part
    image[dynamic_address:] = dynamic
    return bytes(image)


def replace(path: Path) -> None:
    """Puts a stand-in at the library's place: a new file, so that other hard links keep the library."""
    new = path.with_name(path.name + ".part")
    new.write_bytes(stand_in(path.read_bytes()))
    new.chmod(0o755)
    new.replace(path)
