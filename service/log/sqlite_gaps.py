"""Overwrites what deleted records leave behind inside the pages of a SQLite file.

``secure_delete`` overwrites a deleted cell and a freed page. But where SQLite moves cells from page to page to balance
a b-tree, copies of them stay in the unused middle of the old page long after the record was deleted. No
statement reaches them short of VACUUM, which writes the whole file anew. So the unused parts of pages are overwritten
in the file itself: nothing ever reads them, and the checks of SQLite ignore them.

Overwriting needs the file for itself: no connection of this process may be open (SQLite keeps pages in its cache, and
closing a file gives up all of a process's locks on it), the write-ahead log must be empty, and nobody may write.
https://www.sqlite.org/fileformat2.html#b_tree_pages
"""

from __future__ import annotations

import os
import struct
from collections.abc import Generator, Iterable
from pathlib import Path

SLICE_PAGES = 1_024  # looked at in one go, about 2 ms
# A page that begins with one of these bytes belongs to a b-tree: all others begin with a page number below 2^25, but
# for pointer maps, which begin with any byte and are identified by their numbers.
HEADER_BYTES = {2: 12, 5: 12, 10: 8, 13: 8}
MOST_PAGES = 1 << 25
FILE_HEADER = 100  # bytes, in front of the first page's own header

_HEADER = struct.Struct(">BHHHB")  # kind, first free block, cells, start of their content, fragments
_BLOCK = struct.Struct(">HH")  # next free block, size
_WAL_HEADER, _FRAME_HEADER = 32, 24

Range = tuple[int, int]


def dirty_pages(file: int) -> Generator[None, None, set[int]]:
    """Return the numbers of pages whose unused parts are not zero; yield between two slices of an open file."""
    size, maps, dirty = page_size(file), _Maps(file), set[int]()
    n_pages = os.fstat(file).st_size // size
    if n_pages >= MOST_PAGES:
        raise ValueError(f"the file must have fewer than {MOST_PAGES} pages to be cleaned, got {n_pages}: VACUUM it")
    for first in range(1, n_pages + 1, SLICE_PAGES):
        if first > 1:
            yield
        data = os.pread(file, SLICE_PAGES * size, (first - 1) * size)
        for at in range(0, len(data), size):
            number = first + at // size
            if (data[at] in HEADER_BYTES or number == 1) and number not in maps:
                page = data[at : at + size]
                if any(page[start:end].strip(b"\0") for start, end in unused(page, number)):
                    dirty.add(number)
    return dirty


def overwrite(file: int, pages: Iterable[int]) -> int:
    """Overwrite the unused parts of pages with zeros, and sync; return how many bytes that changed."""
    size, maps, n_changed = page_size(file), _Maps(file), 0
    n_pages = os.fstat(file).st_size // size
    for number in pages:
        if not 1 <= number <= n_pages or number in maps:
            continue
        at = (number - 1) * size
        page = os.pread(file, size, at)
        for start, end in unused(page, number):
            if page[start:end].strip(b"\0"):
                os.pwrite(file, bytes(end - start), at + start)
                n_changed += end - start
    os.fsync(file)
    return n_changed


def unused(page: bytes, number: int) -> list[Range]:
    """Return the unused parts of a page: its middle and its free blocks; none for a page of another kind."""
    start = FILE_HEADER if number == 1 else 0
    kind, block, n_cells, content, _ = _HEADER.unpack_from(page, start)
    header = HEADER_BYTES.get(kind)
    if header is None:
        return []
    gap = start + header + 2 * n_cells, content or 65_536
    if not gap[0] <= gap[1] <= len(page):
        return []  # damaged; reading it raises the error
    ranges = [gap]
    while block and len(ranges) < len(page) // 4:
        if not gap[1] <= block <= len(page) - _BLOCK.size:
            return []
        following, size = _BLOCK.unpack_from(page, block)
        if size < _BLOCK.size or block + size > len(page):
            return []
        ranges.append((block + _BLOCK.size, block + size))
        block = following
    return ranges


def page_size(file: int) -> int:
    (size,) = struct.unpack(">H", os.pread(file, 2, 16))
    return 65_536 if size == 1 else int(size)


class _Maps:
    """Pointer map pages, in files that can be shortened: each precedes the pages that it describes.

    https://www.sqlite.org/fileformat2.html#pointer_map_or_ptrmap_pages
    """

    def __init__(self, file: int) -> None:
        header = os.pread(file, FILE_HEADER, 0)
        size = page_size(file)
        self._has = any(header[52:56])  # the largest root page, 0 in a file without maps
        self._every = (size - header[20]) // 5 + 1  # 5 bytes for each page; header[20] bytes are reserved
        self._locked = (1 << 30) // size + 1  # the page that SQLite never uses

    def __contains__(self, number: int) -> bool:
        if not self._has or number < 2:
            return False
        first = (number - 2) // self._every * self._every + 2
        return number == first + (first == self._locked)


def pages_in_wal(database: Path, size: int) -> set[int]:
    """Return the numbers of the pages in a write-ahead log, leftovers of earlier ones too."""
    pages: set[int] = set()
    try:
        with database.with_name(database.name + "-wal").open("rb") as wal:
            end = os.fstat(wal.fileno()).st_size
            for at in range(_WAL_HEADER, end, _FRAME_HEADER + size):
                pages.add(int.from_bytes(os.pread(wal.fileno(), 4, at), "big"))
    except FileNotFoundError:
        pass
    return pages
