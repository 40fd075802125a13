import pytest
import torch

from flashsign.eager.packing import Slots, similar_bags


def test_padding_and_unpadding_give_the_rows_back():
    rows = torch.randn(9, 2)
    slots = Slots.of(torch.tensor([5, 0, 3]), torch.tensor([4, 3, 0]))
    padded = slots.pad(rows)
    assert padded.shape == (3, 4, 2)
    assert not padded[1, 3].any()
    assert not padded[2].any()
    torch.testing.assert_close(slots.unpad(padded), torch.cat((rows[5:9], rows[0:3])))


def test_what_lies_in_other_bags_never_enters_the_padding():
    rows = torch.full((3, 1), torch.nan)
    rows[1:] = 1
    assert Slots.of(torch.tensor([1]), torch.tensor([1])).pad(rows).tolist() == [[[1.0]]]
    assert Slots.of(torch.tensor([1, 1]), torch.tensor([1, 2])).pad(rows)[0].flatten().tolist() == [1.0, 0.0]


@pytest.mark.parametrize("seed", range(3))
def test_similar_bags_hold_every_bag_once_and_pad_by_less_than_half(seed):
    random = torch.Generator().manual_seed(seed)
    sizes, query_sizes = (torch.randint(0, 3000, (40,), generator=random) for _ in range(2))
    groups = list(similar_bags(sizes, query_sizes))
    assert sorted(torch.cat(groups).tolist()) == list(range(40))
    for group in groups:
        for of_group in (sizes[group], query_sizes[group]):
            assert of_group.max() + 1 <= 2**0.5 * (of_group.min() + 1)
