"""Genes of every bag split over processes: outputs and gradients are those of one process that holds them all.

Run as a script (`test_moments.py RANK RANKS FOLDER`), this file is one such process: it makes all calls and saves what
it found, so that torch is imported once per process and not once per test.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import kernel_cases  # noqa: F401  its interpreter is faster
import pytest
import torch
from gloo import found_by_all, in_group
from torch import distributed

from flashsign import dispatch, spherical_attention
from flashsign.distributed import kernels as distributed_kernels

NAMES = ("output", "dq", "dk", "dv", "dm")


@dataclass(frozen=True)
class Case:
    """One call; sizes of the ranks are read from the front: rank r has queries[r] and keys[r] genes."""

    queries: tuple[int, ...] = (7, 5, 4)
    keys: tuple[int, ...] = (9, 6, 8)
    heads: int = 4
    key_heads: int = 2
    width: int = 5
    values: int | None = None
    cells: int = 3
    eps: float = 1e-6
    dtype: torch.dtype = torch.float64
    per_head: bool = False
    packed: bool = False
    absent: bool = False
    large: float = 1.0  # multiplicities of rank 0, beside those near 1 of the others
    condition: float = 0.0  # of the keys; every third query points along the direction that they hardly have

    def rank(self, rank: int) -> dict[str, torch.Tensor]:
        """q, k, v, m and the output's gradient of one rank: dense, or packed with offsets of its own."""
        random = torch.Generator().manual_seed(100 + rank)
        queries, keys = self.queries[rank], self.keys[rank]

        def normal(*shape):
            return torch.randn(*shape, generator=random, dtype=torch.float64)

        values = self.values or self.width
        q, grad = (normal(self.cells, self.heads, queries, width) for width in (self.width, values))
        k, v = (normal(self.cells, self.key_heads, keys, width) for width in (self.width, values))
        m = normal(self.cells, *[self.key_heads] * self.per_head, keys).square() + 0.1
        if self.condition:
            rotation = torch.linalg.qr(torch.randn(self.width, self.width, generator=torch.Generator().manual_seed(5)))
            rotation = rotation[0].double()
            spread = torch.ones(self.width, dtype=torch.float64)
            spread[-1] = 1 / self.condition
            k = k * spread @ rotation
            q[:, :, ::3] = q[:, :, ::3, -1:] * rotation[-1]
        if self.absent and keys:
            m[..., ::3] = 0
            k[:, :, ::3] = torch.nan
            v[:, :, 0] = torch.inf
        m = m * (self.large if rank == 0 else 1.0)
        found = {"q": q, "k": k, "v": v, "m": m, "grad": grad}
        found = {name: tensor.to(self.dtype) for name, tensor in found.items()}
        return self.pack(found, rank) if self.packed else found

    def pack(self, dense: dict[str, torch.Tensor], rank: int) -> dict[str, torch.Tensor]:
        """Every bag keeps another number of its rows: on rank 0 the first bag keeps none."""
        found = {}
        for name, tensor in dense.items():
            rows = tensor if name == "m" and not self.per_head else tensor.transpose(1, 2)
            kept = [min(c + rank, self.cells) * rows.shape[1] // self.cells for c in range(self.cells)]
            found[name] = torch.cat([bag[:size] for bag, size in zip(rows, kept, strict=True)])
            found["query_offsets" if name in ("q", "grad") else "offsets"] = torch.tensor([0, *kept]).cumsum(0)
        return found


CASES = {
    "dense": Case(),
    "dense float32": Case(dtype=torch.float32),
    "bfloat16": Case(dtype=torch.bfloat16),
    "one key head": Case(heads=3, key_heads=1),
    "as many key heads": Case(heads=2, key_heads=2, eps=0.1),
    "multiplicity per head": Case(per_head=True),
    "packed": Case(packed=True, eps=0.1),
    "packed, narrow values": Case(packed=True, values=2),
    "narrow values, condition 1e3": Case(
        (20, 20, 20), (60, 70, 80), width=8, values=3, dtype=torch.float32, condition=1e3
    ),
    "wide values": Case(values=9, dtype=torch.float32),
    "packed per head float32": Case(packed=True, per_head=True, dtype=torch.float32),
    "a rank without genes": Case(queries=(0, 5, 4), keys=(0, 9, 6), eps=0.1),
    "packed, a rank without genes": Case(queries=(6, 0, 4), keys=(9, 0, 6), packed=True),
    "keys here, queries there": Case(queries=(0, 6, 0), keys=(9, 0, 0)),
    "absent keys hold NaN": Case(absent=True, eps=0.1),
    "packed, absent keys hold NaN": Case(absent=True, packed=True, dtype=torch.float32),
    "multiplicity 1e5 beside 1": Case(large=1e5),
    "multiplicity 1e5 beside 1 float32": Case(large=1e5, eps=0.1, dtype=torch.float32),
    "eps of a tenth": Case(eps=0.1),
    "condition 1e2": Case((20, 20, 20), (60, 70, 80), width=8, dtype=torch.float32, condition=1e2),
    "condition 1e3": Case((20, 20, 20), (60, 70, 80), width=8, dtype=torch.float32, condition=1e3),
    "condition 1e3 float64": Case((20, 20, 20), (60, 70, 80), width=8, condition=1e3),
    "packed, condition 1e3": Case((20, 20, 20), (60, 70, 80), width=8, packed=True, dtype=torch.float32, condition=1e3),
    "more rows than one product takes": Case((1500, 5, 0), (3000, 6, 2100), heads=2, key_heads=1, cells=2),
    "no bags": Case(cells=0),
}
HALF = Case(heads=2, key_heads=1, cells=2, width=16, dtype=torch.float16)  # small, for the interpreter
KERNEL_CASES = {
    "dense": HALF,
    "packed": replace(HALF, packed=True),
    "multiplicity per head, a width to pad": replace(HALF, per_head=True, key_heads=2, width=11),
    "a rank without genes": replace(HALF, queries=(0, 5, 4), keys=(0, 9, 6)),
    "narrow values": replace(HALF, width=32, values=5),
    "packed, wide values": replace(HALF, values=20, packed=True),
    "packed, a rank without genes": replace(HALF, queries=(6, 0, 4), keys=(9, 0, 6), packed=True),
    "absent keys hold NaN": replace(HALF, absent=True),
    "units of their own": replace(HALF, large=64.0),
    "ill-conditioned rows": replace(HALF, queries=(9, 6, 3), keys=(20, 20, 30), condition=1e3),
}
FIRST = "dense", "narrow values", "packed, wide values"
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.02}
# Sums in another order: moments tell norms to 0.13 u / rho, and the least rho here is near 1e-7.
ILL_CONDITIONED_TOLERANCE = {torch.float64: 1e-10, torch.float32: 5e-7}


def call(tensors, eps, group=None, **more):
    """The output and the leaves that it depends on, of tensors as `Case.rank` makes them."""
    leaves = [tensors[name].detach().requires_grad_() for name in "qkvm"]
    offsets = {name: tensors[name] for name in ("offsets", "query_offsets") if name in tensors}
    return spherical_attention(*leaves, **offsets, eps=eps, group=group, **more), leaves


# What one process of several does.


def process(rank: int, ranks: int, folder: Path) -> None:
    with in_group(rank, ranks, folder) as group:
        count = Count()
        distributed.all_reduce, count.real = count, distributed.all_reduce
        found = {}
        for name, case in CASES.items():
            found[name] = of_case(case, rank, group, count)
        for question in QUESTIONS:
            found[question.__name__] = question(rank, group, count)
            count.taken()
        torch.save(found, folder / f"{rank}.pt")


class Count:
    """torch.distributed.all_reduce, counting its calls."""

    calls = 0

    def __call__(self, *args, **options):
        self.calls += 1
        return self.real(*args, **options)

    def taken(self) -> int:
        calls, self.calls = self.calls, 0
        return calls


def of_case(case, rank, group, count):
    """A rank's outputs and gradients, and the collectives of each pass."""
    tensors = case.rank(rank)
    output, leaves = call(tensors, case.eps, group)
    forward = count.taken()
    gradients = torch.autograd.grad(output, leaves, tensors["grad"])
    return dict(zip(NAMES, (output.detach(), *gradients), strict=True), calls=(forward, count.taken()))


def frozen(rank, group, count):
    """The last rank's tensors need no gradient; every rank calls backward all the same."""
    tensors = CASES["dense"].rank(rank)
    leaves = [tensors[name].requires_grad_(rank == 0) for name in "qkvm"]
    output = spherical_attention(*leaves, group=group)
    output.backward(tensors["grad"])
    return {"requires": output.requires_grad, "calls": count.taken(), "gradients": [leaf.grad for leaf in leaves]}


def two_layers(rank, group, count):
    """The output of a layer is the next one's queries, keys and values: four collectives in one order on all ranks."""
    return layers(CASES["as many key heads"], CASES["as many key heads"].rank(rank), group), count.taken()


def other_units(rank, group, count):
    """Multiplicities of all ranks in units of 2^-60 and 2^40."""
    tensors = CASES["dense float32"].rank(rank)
    return [call(tensors | {"m": tensors["m"] * 2.0**unit}, 1e-6, group)[0].detach() for unit in (0, -60, 40)]


def refused(rank, group, count):
    """Sentences of what is refused; every rank asks the same, and nothing is left waiting."""
    tensors = CASES["dense"].rank(rank)

    def raised(ask):
        try:
            ask()
        except (NotImplementedError, ValueError, RuntimeError) as error:
            return f"{type(error).__name__}: {error}"
        return "nothing"

    output, leaves = call(tensors, 1e-6, group)
    grads = torch.stack([tensors["grad"]] * 2)
    q, k, v, m = (leaf.detach() for leaf in leaves)
    return {
        "second": raised(lambda: torch.autograd.grad(output, leaves, tensors["grad"], create_graph=True)),
        "batched": raised(lambda: torch.autograd.grad(output, leaves, grads, is_grads_batched=True, retain_graph=True)),
        "forward": raised(
            lambda: torch.func.jvp(lambda x: spherical_attention(x, k, v, m, group=group), (q,), (torch.ones_like(q),))
        ),
        "vmap": raised(
            lambda: torch.func.vmap(lambda x: spherical_attention(x[None], x[None], x[None], group=group))(k)
        ),
        "calls": count.taken(),
    }


def kernels(rank, group, count):
    """By the moments' kernels, in Triton's interpreter: outputs and gradients of KERNEL_CASES, with the collectives."""
    if torch.cuda.is_available():  # kernels are compiled here, and these tensors are on the CPU
        return {}
    found = {}
    for name, case in KERNEL_CASES.items():
        with dispatch.only("triton_gene_parallel"):
            if name in FIRST:  # of its widths: the ranks agree that their kernels are right
                call(case.rank(rank), case.eps, group)
                assert count.taken() == 3
            found[name] = of_case(case, rank, group, count)
    return found


def agreement(rank, group, count):
    """What all ranks decide of kernels that some of them have not checked yet, that all have, and that one found wrong;
    and how many collectives that took."""
    call = SimpleNamespace(k=torch.empty(0, 64), v=torch.empty(0, 16), q=torch.empty(0, 64, dtype=torch.float16))
    found = []
    for problems in ((None, "", ""), ("", None, ""), ("", "", ""), (None, None, None)):
        distributed_kernels.known_problem = lambda plan, call, own=problems[rank]: own
        found.append(distributed_kernels.kernels_of_all_ranks_are_right(call, group))
    call.q = call.q.bfloat16()
    for problems in (("it is off", None, ""), ("", "", "")):
        distributed_kernels.known_problem = lambda plan, call, own=problems[rank]: own
        found.append(distributed_kernels.kernels_of_all_ranks_are_right(call, group))
    return found, count.taken()


QUESTIONS = kernels, frozen, two_layers, other_units, refused, agreement


def layers(case, tensors, group=None):
    first, leaves = call(tensors, case.eps, group)
    second = spherical_attention(first, first, first.sin(), eps=case.eps, group=group)
    return (second.detach(), *torch.autograd.grad(second, leaves, tensors["grad"]))


# What the tests compare it with.


def whole(case: Case, ranks: int) -> dict[str, torch.Tensor]:
    """The tensors of all ranks as one process would hold them; packed: bag after bag, in each rank after rank."""
    parts = [case.rank(rank) for rank in range(ranks)]
    if not case.packed:
        return {name: torch.cat([part[name] for part in parts], -1 if name == "m" else 2) for name in parts[0]}
    found = {}
    for name in ("q", "k", "v", "m", "grad"):
        cut = "query_offsets" if name in ("q", "grad") else "offsets"
        bags = [part[name].split(part[cut].diff().tolist()) for part in parts]
        found[name] = torch.cat([rows for bag in zip(*bags, strict=True) for rows in bag])
    for cut in ("offsets", "query_offsets"):
        found[cut] = sum(part[cut] for part in parts)
    return found


def joined(case: Case, ranks: list[dict], name: str) -> torch.Tensor:
    """One output or gradient of all ranks, in the order of `whole`."""
    values = [found[name] for found in ranks]
    if not case.packed:
        return torch.cat(values, -1 if name == "dm" else 2)
    cut = "query_offsets" if name in ("output", "dq") else "offsets"
    bags = [value.split(case.rank(r)[cut].diff().tolist()) for r, value in enumerate(values)]
    return torch.cat([rows for bag in zip(*bags, strict=True) for rows in bag])


def one_process(case: Case, ranks: int, dtype=None, **more) -> dict[str, torch.Tensor]:
    tensors = whole(case, ranks)
    tensors = {name: x.to(dtype or x.dtype) if x.is_floating_point() else x for name, x in tensors.items()}
    output, leaves = call(tensors, case.eps, **more)
    return dict(zip(NAMES, (output, *torch.autograd.grad(output, leaves, tensors["grad"])), strict=True))


def distance(found, true):
    """|found - true| / |true|; 0 where both are empty or zero."""
    error = (found.detach().double() - true.detach().double()).norm()
    return float(error / true.detach().double().norm()) if error != 0 else 0.0


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each of three processes found."""
    return found_by_all(__file__, 3, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("name", CASES)
def test_genes_over_processes_give_the_outputs_and_gradients_of_one_process(ranks, name):
    """With one collective forward and one backward."""
    case = CASES[name]
    assert [rank[name]["calls"] for rank in ranks] == [(1, 1) if case.cells else (0, 0)] * len(ranks)
    tolerance = (ILL_CONDITIONED_TOLERANCE if case.condition else TOLERANCE)[case.dtype]
    expected = one_process(case, len(ranks), torch.float64 if case.dtype == torch.float64 else torch.float32)
    if case.condition and case.dtype == torch.float32:  # one process in float32 is no closer to the truth
        expected = one_process(case, len(ranks), torch.float64, method="stream")
    for part, true in expected.items():
        found = joined(case, [rank[name] for rank in ranks], part)
        assert found.dtype == case.dtype and found.shape == true.shape
        assert found.isfinite().all()
        assert distance(found, true) < tolerance, part


@pytest.mark.parametrize("name", KERNEL_CASES)
def test_kernels_of_several_devices_are_as_accurate_as_half_precision(ranks, name):
    """Ill-conditioned rows are found, by all ranks, and computed again from float64 moments."""
    case = KERNEL_CASES[name]
    expected = one_process(case, len(ranks), torch.float64, method="stream")
    if not ranks[0]["kernels"]:
        pytest.skip("kernels are compiled here: benchmarks/gene_parallel.py --only agree has them on several GPUs")
    found = [rank["kernels"][name] for rank in ranks]
    assert [each["calls"] for each in found] == [(3 if name == "ill-conditioned rows" else 2, 1)] * len(ranks)
    for part, true in expected.items():
        assert distance(joined(case, found, part), true) < 2e-3, part


def test_ranks_take_kernels_when_all_of_them_know_and_never_where_one_is_wrong(ranks):
    """Asked again until all know; the answer is kept."""
    for rank in ranks:
        assert rank["agreement"] == ([False, False, True, True, False, False], 4)


def test_a_rank_that_needs_no_gradient_takes_part_in_the_collectives(ranks):
    true = one_process(CASES["dense"], len(ranks))
    assert all(rank["frozen"]["requires"] and rank["frozen"]["calls"] == 2 for rank in ranks)
    first = ranks[0]["frozen"]["gradients"]
    for found, name in zip(first, NAMES[1:], strict=True):
        axis = -1 if name == "dm" else 2
        assert distance(found, true[name].narrow(axis, 0, found.shape[axis])) < 1e-12
    assert all(gradient is None for rank in ranks[1:] for gradient in rank["frozen"]["gradients"])


def test_layers_follow_each_other(ranks):
    case = CASES["as many key heads"]
    expected = layers(case, whole(case, len(ranks)))
    found = [dict(zip(NAMES, rank["two_layers"][0], strict=True)) for rank in ranks]
    assert all(rank["two_layers"][1] == 4 for rank in ranks)
    for name, true in zip(NAMES, expected, strict=True):
        assert distance(joined(case, found, name), true) < 1e-12


def test_the_unit_of_multiplicities_changes_no_bit_of_the_output(ranks):
    for rank in ranks:
        one, small, large = rank["other_units"]
        assert one.equal(small) and one.equal(large)


@pytest.mark.parametrize("ask", ["second", "batched", "forward", "vmap"])
def test_more_than_one_derivative_in_reverse_is_refused(ranks, ask):
    for rank in ranks:
        assert rank["refused"][ask].startswith("NotImplementedError: Attention with group= can be differentiated once")
        assert rank["refused"]["calls"] == 1


@pytest.fixture
def alone():
    """A group of this process and no other."""
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield distributed.group.WORLD
    distributed.destroy_process_group()


@pytest.mark.parametrize(("option", "value"), [("method", "stream"), ("backend", "triton")])
def test_what_cannot_read_other_ranks_genes_is_refused(bag, alone, option, value):
    with pytest.raises(ValueError, match=f'{option}="{value}" cannot read other ranks'):
        spherical_attention(*bag.leaves, group=alone, **{option: value})


@pytest.mark.parametrize("method", ["auto", "moments"])
def test_a_group_of_one_rank_is_a_call_without_a_group(bag, alone, method):
    output = spherical_attention(*bag.leaves, group=alone, method=method)
    expected = spherical_attention(*bag.leaves)
    torch.testing.assert_close(output, expected)
    torch.testing.assert_close(bag.gradients(output), bag.gradients(expected))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    process(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
