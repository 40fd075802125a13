"""Which tiles of queries have their keys split over several programs, so that the last wave fills
the device.

A device runs as many tiles at a time as it has multiprocessors: a wave. The tiles that are left
after the last full wave would take as long as a wave and leave most of the device idle: 432 tiles
on 132 multiprocessors are 3.3 waves and take the time of 4. Sums over keys may be formed in any
parts, so the keys of the tiles that are left are split (split-K): 36 tiles with their keys in 3
splits take a third of a wave's time.
"""

from __future__ import annotations

from dataclasses import dataclass

from flashsign.tuning.block_sizes import BlockSizes

MOST_SPLITS = 4
"""Into how many splits the keys of a tile are divided at most."""
SPLIT_COST = 512
"""The fixed cost of a split, in keys: starting it, writing its sums and reading them (H200;
docs/log.md).
"""
SHORT_TILE_COST = 1.07
"""Cost of a pair of query and key in tiles of 128 queries, relative to tiles of 256 (H200)."""


@dataclass(frozen=True)
class SplitKeys:
    """How the tiles of a launch split their keys.

    The first `whole_tiles` tiles have one program each; the other `split_tiles` have `splits`
    programs each, each for a part of the tile's keys. cost: pairs of a query and a key that a
    multiprocessor works through.
    """

    whole_tiles: int
    split_tiles: int
    splits: int
    cost: float

    @classmethod
    def of(
        cls, tiles: int, keys: int, sizes: BlockSizes, multiprocessors: int, most: int = MOST_SPLITS
    ) -> SplitKeys:
        """Return the cheapest way for `tiles` tiles, of sizes.own queries and `keys` keys each,
        with at most `most` splits.
        """
        full_waves, left = divmod(tiles, multiprocessors)

        def keys_in_last_wave(splits: int) -> int:
            """Return keys that a multiprocessor works through while the tiles that are left are
            done.
            """
            rounds = -(-left * splits // multiprocessors)
            return rounds * (-(-keys // splits) + (SPLIT_COST if splits > 1 else 0))

        splits = min(range(1, most + 1), key=keys_in_last_wave)
        pair = SHORT_TILE_COST if sizes.own <= 128 else 1.0
        cost = (full_waves * keys + keys_in_last_wave(splits)) * sizes.own * pair
        return cls(tiles, 0, 1, cost) if splits == 1 else cls(tiles - left, left, splits, cost)
