"""The memory of this process: how much it has, and giving back what it no longer uses."""

from __future__ import annotations

import ctypes
import os

MMAP_THRESHOLD, LARGE_PIECE = -3, 8 * 2**20  # the option's number in malloc.h, and bytes


def return_large_pieces() -> None:
    """Has the allocator return pieces of LARGE_PIECE bytes and more as soon as they are freed.

    glibc raises this limit to 32 MiB by itself, and what lies below it is kept: several hundred megabytes of a fit.
    """
    try:
        ctypes.CDLL(None).mallopt(MMAP_THRESHOLD, LARGE_PIECE)
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
