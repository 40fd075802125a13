"""The same numbers as `SignedAttention` and `StaticAttention`, by flashsign.spherical_attention.

    python benchmarks/one_model/attention.py        # compares them, in float64; and the sign of every edge: seconds

Training uses the static form: scores of genes alone are one table, and cells cost two products. Attention suits many
genes and cells of few of them. The basal gene has a dimension of queries and keys of its own, so that its score is b_i;
values are as wide as keys: (a_j, 0, 0, ..) for regulators and (0, 1, 0, ..) for the basal gene, which tells n_i.

Letters: P members, G groups of cells that share a state, B cells of a group, n genes, R regulators, H heads, E width.
"""

import torch
from model import Model, Shape, SignedAttention, StaticAttention
from torch import Tensor
from torch.nn import functional as F

from flashsign import spherical_attention


def attend(block: SignedAttention, m: Tensor, state: Tensor, pick: Tensor) -> Tensor:
    """m [P, G, B, R + 1], state [G], pick [n]: genes that regulate nothing (no score on themselves) -> [P, G, B, n]."""
    P, G, B, _ = m.shape
    amount, gain, basal = (each.flatten(2) for each in block.positive(pick))  # [P, H, R + 1], [P, H, n] twice
    found = torch.empty(P, G, B, len(pick), dtype=m.dtype)
    for p in range(P):
        key = F.pad(block.key[p], (0, 1, 0, 1))  # [H, R + 2, E + 1]
        key[:, -1, -1] = 1
        value = torch.zeros_like(key)
        value[:, :-1, 0], value[:, -1, 1] = amount[p], 1
        for g in range(G):
            query = block.query[p][:, pick]
            if block.deviation.shape[2]:
                query = query + block.deviation[p][:, state[g], pick]
            q = torch.cat([query, basal[p][..., None]], -1)  # [H, n, E + 1]
            each = (t.expand(B, *t.shape) for t in (q, key, value))
            out = spherical_attention(*each, F.pad(m[p, g], (0, 1), value=1.0), eps=0.0)  # [B, H, n, E + 1]
            norm = basal[p] / out[..., 1]
            average = query @ (block.key[p] * (block.centre[p, state[g]] * amount[p])[..., None]).sum(1)[..., None]
            change = out[..., 0] - average[..., 0] / norm
            found[p, g] = (gain[p] * change).sum(1) + block.level[p, state[g], pick] + block.bias[p, pick]
    return found


def read(block: StaticAttention, m: Tensor) -> Tensor:
    """m [B, M] -> [P, B, H E]: one query, whose key of a gene is its score."""
    found = []
    for score, value in zip(block.score, block.value, strict=True):  # [H, M], [H, M, E]
        k = F.pad(score[..., None], (0, value.shape[-1] - 1))
        q = F.pad(torch.ones(len(score), 1, 1, dtype=m.dtype), (0, value.shape[-1] - 1))
        out = spherical_attention(*(t.expand(len(m), *t.shape) for t in (q, k, value)), m, eps=0.0)
        found.append(out[:, :, 0].flatten(1))
    return torch.stack(found)


def main() -> None:
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    own = torch.full((40,), -1)
    own[:7] = torch.arange(7)
    model = Model(Shape(genes=40, regulators=7, members=2, states=3, types=3, summary=16), own).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.second.centre.uniform_(0, 3)
    m, state, pick = 4 * torch.rand(2, 3, 5, 8), torch.arange(3), torch.arange(7, 40)

    def close(a, b):
        return float((a - b).abs().max() / b.abs().max())

    print(
        f"block 2: relative difference {close(attend(model.second, m, state, pick), model.second(m, state, pick)):.1e}"
    )
    x = torch.rand(6, 41)
    print(f"identity: {close(read(model.identity.present, x), model.identity.present(x)):.1e}")
    # No gene reads itself, and what is labelled by c changes nothing else.
    y = model(m, state, torch.arange(40))
    for j in range(7):
        moved = m.clone()
        moved[..., j] += 1
        assert torch.equal(model(moved, state, own.new_tensor([j])), y[..., [j]])
    for name, block in model.named_children():
        kept = {k: v.clone() for k, v in block.state_dict().items()}
        for parameter in block.parameters():
            torch.nn.init.normal_(parameter)
        moved = not torch.equal(model(m, state, torch.arange(40)), y)
        assert moved == (name != "identity"), name
        block.load_state_dict(kept)
    print("no gene reads itself; noise in any block but the identity's moves the predictions of genes")


if __name__ == "__main__":
    main()
