"""Numbers that are the same each time, and attention by any normaliser written out."""

import torch


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def leaf(*shape, seed=0):
    return normal(*shape, seed=seed).requires_grad_()


def written_out(normaliser, q, k, v, m, eps=0.0):
    """q [C, H, N, E], k and v [C, K, M, E], m [C, M] or [C, K, M] -> [C, H, N, E]."""
    m = m[:, None] if m.ndim == 2 else m
    k, v, m = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v, m))
    s = q @ k.mT * m[:, :, None]
    if normaliser == "softmax":
        return torch.softmax(q @ k.mT + m[:, :, None].log(), -1) @ v
    a1, a2 = {"spherical": (s, s.square()), "l1": (s, s.abs())}.get(
        normaliser, (s.relu().square(),) * 2
    )
    z = a2.sum(-1, keepdim=True)
    if normaliser == "spherical":
        total = (m.square() * k.square().sum(-1)).sum(-1)[..., None, None]
        z = z + eps * q.square().sum(-1, keepdim=True) * total
    z = torch.where(z == 0, 1, z)  # of a row whose weights are all 0
    return a1 @ v / (z.sqrt() if normaliser == "spherical" else z)
