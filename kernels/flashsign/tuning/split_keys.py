"""How a call's tiles of queries fall on the multiprocessors: wave after wave, and what is left with its keys in shares.

A device does `processors` tiles at a time. What is left after the last full wave would take as long as a wave and leave
most of the device idle: 432 tiles on 132 multiprocessors are 3.3 waves and take the time of 4. Sums over keys may come
in any parts, so the tiles of the last wave are dealt out: 36 tiles in 3 shares of their keys take the time of a third.
"""

from __future__ import annotations

from dataclasses import dataclass

from flashsign.tuning.tile import Tile

MOST_SHARES = 4
SHARING = 512
"""What a share costs beyond its keys, in keys: its own beginning, its sums written and read (H200; docs/log.md)."""
SMALL_TILE = 1.07
"""What a pair of query and key costs in tiles of 128 queries, over what it costs in tiles of 256 (H200)."""


@dataclass(frozen=True)
class Waves:
    """The first `whole` tiles take a program each, the `left` ones `shares` programs each."""

    whole: int
    left: int
    shares: int
    cost: float

    @classmethod
    def of(cls, works: int, keys: int, tile: Tile, processors: int, most: int = MOST_SHARES) -> Waves:
        """Of `works` tiles with `keys` keys each, in at most `most` shares; cost: pairs that a multiprocessor does."""
        full, left = divmod(works, processors)

        def last(shares: int) -> int:
            """Keys that pass by while what is left is done."""
            return -(-left * shares // processors) * (-(-keys // shares) + (SHARING if shares > 1 else 0))

        shares = min(range(1, most + 1), key=last)
        pair = SMALL_TILE if tile.own <= 128 else 1.0
        cost = (full * keys + last(shares)) * tile.own * pair
        return cls(works, 0, 1, cost) if shares == 1 else cls(works - left, left, shares, cost)
