"""A member by itself says what it says among the others, and writes nothing of its own."""

import torch

from grn.model.derivatives import in_parts
from grn.model.one_member import one_member


def test_a_member_alone_says_what_it_says_among_others(make_model, make_bags):
    model, bags = make_model(states=3), make_bags(states=3)
    m, share = model.inputs(bags.multiplicity[:, model.regulators], bags.basal), bags.states
    even = m.new_full((len(m),), 1 / len(m))

    @torch.no_grad()
    def said(one):
        """By its first block, of what its second one reads, and by this one's derivatives."""
        among = one.among(m, share)
        derivatives = in_parts(one, one.blocks[1], m, 1, even)
        return among, one.corrected(m, among, share), derivatives

    every, query = said(model), model.blocks[1].embedding.query
    for member in range(4):
        one = one_member(model, member)
        for alone, together in zip(said(one), every, strict=True):
            torch.testing.assert_close(alone, together[member : member + 1])
        assert one.blocks[1].embedding.query.data_ptr() == query[member].data_ptr()
    assert model.config.members == len(query) == 4
