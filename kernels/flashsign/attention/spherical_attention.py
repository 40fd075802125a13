"""The public entry point: checks a call, and hands it to the path that flashsign.attention.dispatch
chooses.

Letters: C cells (bags), H query heads, K key heads (H a multiple of K), N queries, M keys, E head
width, V value width; packed: T queries and S keys of all bags together. B = C K bags of one key
head, R = H / K query heads of a group.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from flashsign.attention.call import AttentionCall
from flashsign.attention.dispatch import Backend, Method, plan_call
from flashsign.attention.validation import check_packing, check_tensors
from flashsign.eager.transforms import without_autocast
from flashsign.operators.in_torch import chosen_attention
from flashsign.operators.kernel_operators import attend
from flashsign.operators.packed import attend_packed


def spherical_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    multiplicity: Tensor | None = None,
    *,
    offsets: Tensor | None = None,
    query_offsets: Tensor | None = None,
    eps: float = 1e-6,
    method: Method = "auto",
    backend: Backend = "auto",
) -> Tensor:
    """Attend over bags with weights that keep their sign: an L2 norm normalises them, not softmax.

        s_ij = m_j (q_i . k_j)
        t    = sum_j m_j^2 |k_j|^2
        o_i  = sum_j s_ij v_j / sqrt(sum_j s_ij^2 + eps |q_i|^2 t + tiny)
    Dense: q [C, H, N, E], k [C, K, M, E], v [C, K, M, V], multiplicity [C, M] or [C, K, M] -> [C,
        H, N, V].
    Packed: q [T, H, E], k [S, K, E], v [S, K, V], multiplicity [S] or [S, K] -> [T, H, V]; bag c
        owns the keys offsets[c]:offsets[c + 1] and the queries query_offsets[c]:query_offsets[c +
        1] (by default the same offsets). Offsets (cu_seqlens) are int32 or int64, on q's device.
        Their values are read once per tensor, which synchronises with the GPU; to change them, pass
        a new tensor or write to the old one with torch operations, which are noticed.

    q, k, v share one floating dtype, which the output has too; sums are float32 at least.
    multiplicity: real numbers of any dtype, not negative, by default all ones. On a CPU, negative,
        infinite and NaN ones are refused, unless they require a gradient; on a GPU, where reading
        them would wait for the device, they turn signs or make NaN. A key of multiplicity 0 is
        absent, whatever its k and v hold (NaN too); its derivative with respect to multiplicity is
        the true one, or 0 where its k or v is not finite. Differentiable in q, k, v and
        multiplicity: in reverse, forward and batched mode, and more than once.

    V may be any width; where it is wider than E, q and k are filled up with zeros. The kernels fill
    up both to a multiple of 16.

    method: "moments" takes time linear in N and M; "stream" passes over the keys; "auto" takes the
        faster one.
    backend: "triton" runs the GPU kernels, "torch" runs anywhere, "auto" takes the kernels where
        they can run. They take float16, bfloat16 and float32; k, v and scores q.k m / max m up to a
        quarter of the dtype's largest number; heads up to 128 wide by moments and 256 by the
        stream; up to 65 535 bags times key heads; neither forward mode nor torch.func transforms.
        On a kind of GPU or a Triton on which they were never seen, each kernel is checked in the
        background at its first use; torch computes meanwhile, and in the place of one that is wrong
        (FLASHSIGN_VERIFY).

    Tensors without values, on the meta device or in FakeTensorMode, give outputs and gradients
    without values, and torch.export takes a call. Its program holds one operator of flashsign for
    packed bags, whose offsets it reads when it runs, and for the kernels; import flashsign before
    such a program is loaded.

    What runs for a call: flashsign.attention.dispatch.plan. Source: spherical attention, arXiv
    2505.09326.
    Raises ShapeMismatch (tensors that do not fit together, or no multiplicities),
    BackendUnavailable (backend="triton" cannot run), ValueError (an unknown method or backend).

    Example:
        >>> import torch
        >>> from flashsign import spherical_attention
        >>> cells, heads, genes, width = 2, 4, 30, 16
        >>> q, k, v = torch.randn(3, cells, heads, genes, width)
        >>> counts = torch.randint(0, 5, (cells, genes)).float()
        >>> spherical_attention(q, k, v, counts).shape
        torch.Size([2, 4, 30, 16])

        Packed bags of 10 and 20 genes:

        >>> q, k, v = torch.randn(3, 30, heads, width)
        >>> spherical_attention(q, k, v, offsets=torch.tensor([0, 10, 30])).shape
        torch.Size([30, 4, 16])
    """
    packed = offsets is not None
    check_tensors(q, k, v, multiplicity, packed, any_value_width=True)
    offsets, query_offsets = check_packing(q, k, offsets, query_offsets)
    values = v.shape[-1]
    if values > q.shape[-1]:  # zeros change no product of q and k
        q, k = (F.pad(x, (0, values - x.shape[-1])) for x in (q, k))
    plan = plan_call(q, k, v, multiplicity, offsets, query_offsets, method, backend)
    if multiplicity is None:
        multiplicity = k.new_ones(k.shape[:1] if packed else (k.shape[0], k.shape[2]))
    if plan.backend == "triton":
        call = AttentionCall.of(q, k, v, multiplicity, offsets, query_offsets, eps)
        return call.output(attend(plan, call), values)
    # Sums of thousands of squares need more than the 8 or 11 bits of half precision, under autocast
    # too.
    with without_autocast(q):
        sums = torch.promote_types(q.dtype, torch.float32)
        wide = (q.to(sums), k.to(sums), v.to(sums), multiplicity.to(sums))
        if offsets is None or query_offsets is None:
            return chosen_attention(*wide, eps, plan.asked).to(q.dtype)
        return attend_packed(*wide, offsets, query_offsets, eps, plan.asked).to(q.dtype)
