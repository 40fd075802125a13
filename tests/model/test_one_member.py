"""A member by itself says what it says among the others, and writes nothing of its own."""

import torch

from grn.model.derivatives import in_parts
from grn.model.one_member import one_member


def test_a_member_alone_says_what_it_says_among_others(make_model, make_bags):
    model, bags = make_model(states=3).eval(), make_bags(states=3)
    torch.manual_seed(2)
    for each in model.blocks.parameters():
        each.data += 0.3 * torch.randn_like(each)
    m, share = model.inputs(bags.multiplicity[:, model.regulators], bags.basal), bags.states
    even = m.new_full((len(m),), 1 / len(m))
    with torch.no_grad():
        every = in_parts(model, model.blocks[1], m, 1, even)
        for member in range(model.config.members):
            one = one_member(model, member)
            of_one = one.among(m, share)
            among = model.among(m, share)
            torch.testing.assert_close(of_one, among[member : member + 1])
            corrected = model.corrected(m, among, share)[member : member + 1]
            torch.testing.assert_close(one.corrected(m, of_one, share), corrected)
            alone = in_parts(one, one.blocks[1], m, 1, even)
            torch.testing.assert_close(alone, every[member : member + 1])
            query = one.blocks[1].embedding.query
            assert query.data_ptr() == model.blocks[1].embedding.query[member].data_ptr()
    assert model.config.members == len(model.blocks[1].embedding.query) > 1
