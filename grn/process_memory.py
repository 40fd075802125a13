"""The memory of this process: how much it has, and giving back what it no longer uses."""

from __future__ import annotations

import ctypes
import os

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # numbers of options in malloc.h
LARGE_PIECE, KEPT = 8 * 2**20, 64 * 2**20  # bytes


def return_large_pieces() -> None:
    """Has the allocator return pieces of LARGE_PIECE bytes and more as soon as they are freed.

    glibc raises this limit to 32 MiB by itself, and what lies below it is kept: several hundred megabytes of a fit.
    Once one limit is set, glibc no longer raises the other, 128 KiB of free memory at the end of the heap: then nearly
    every tensor would be asked of the system anew, and operations on 6 MB take 1.6 times as long.
    """
    try:
        libc = ctypes.CDLL(None)
        libc.mallopt(MMAP_THRESHOLD, LARGE_PIECE)
        libc.mallopt(TRIM_THRESHOLD, KEPT)
    except (OSError, AttributeError):  # another allocator
        return


def give_back() -> None:
    """Has the allocator return what was freed: glibc keeps pieces of many megabytes otherwise."""
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError):  # another allocator
        return


def in_use() -> float:
    """Bytes that the process has now."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return float(int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE"))
    except (OSError, ValueError):
        return 7e8  # what the libraries take


def physical_memory() -> float | None:
    """Bytes of memory that the machine has, None where it does not say."""
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (OSError, ValueError):
        return None
