"""Training steps as Lightning takes them with grn's Task, without a Trainer, on simulated cells, by several attentions.

The model, its losses, gradient clipping, AdamW and its schedule are the Task's own; the loop that calls them is here.
Left out: reading cells, the moving average of the weights, logs and validation. Each attention replaces the one call
that grn/model/transformer.py makes. Softmax is given the cheapest form that it can have:
- It ignores multiplicities. They would be a bias log m on the scores, and torch's FlashAttention takes no bias.
- Packed bags are padded to the longest of their batch, and the padding is not masked, for the same reason: it takes
  part as keys of zeros. The result is not the softmax over the bag, but takes as long. `varlen` (FlashAttention's own
  form of packed bags) needs no padding and is exact.
- The same few batches return again and again, so that cuDNN's plans, one per length, are all made in the warm-up.

Letters as in flashsign.attention: packed T queries and S keys, C bags, H query heads, K key heads, E head width.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import torch
from attention_parts.clock import release, synchronise, times
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import grn.model.transformer
from flashsign import spherical_attention
from flashsign.dispatch import Device, plan
from flashsign.tensor_cache import cached
from grn.bags import Bags, Batch
from grn.config.schema import Config
from grn.model.compile import Fusible
from grn.model.objectives import mean_losses, total_loss
from grn.model.signed.regulation import Regulation
from grn.model.signed.regulation_layer import RegulationLayer
from grn.model.transformer import Model
from grn.regulation.members import RegulationSettings
from grn.training.task import Task

VOCABULARY = 40000  # genes that the model knows, for packed bags
CELLS = {
    2000: 32,
    5000: 16,
    20000: 4,
}  # genes of a cell -> cells of a batch, so that batches have about as many genes in all
REGULATORS = 0.05  # fraction of the genes
EXPRESSED = 0.6  # fraction of a dense bag's genes
SPREAD = 0.2  # sizes of packed bags are uniform between 1 - SPREAD and 1 + SPREAD times the mean
CLASSES = 10
DEFAULTS = Config.model_validate({"data": {"path": "made up"}})  # those of configs/own_data.yaml
MODELS = {
    "default": DEFAULTS.model,
    "wide": DEFAULTS.model.model_copy(update={"width": 256, "query_heads": 4, "key_heads": 2, "hidden": 512}),
}


@dataclass(frozen=True)
class Point:
    """bags: dense (all cells have the same genes) or packed (cells have `genes` on average, of `vocabulary`).
    keys: the genes that gene queries read, "5 %" or "all".   members: ensemble members of the regulation layer.
    model: a name in MODELS.   spread: of the sizes of packed bags, see SPREAD.
    """

    bags: str
    genes: int
    keys: str
    cells: int
    vocabulary: int
    members: int
    model: str = "default"
    spread: float = SPREAD

    @classmethod
    def of(cls, bags: str, genes: int, keys: str, cells: int | None = None, vocabulary: int = VOCABULARY) -> Point:
        """The members are those of the shipped configurations.

        Five as in own_data.yaml where regulators are listed and all cells have the same genes, else none as in
        whole_transcriptome.yaml: grn train refuses a regulation layer whose scores are too large.
        """
        dense = bags == "dense"
        members = DEFAULTS.regulation.members if dense and keys != "all" else 0
        cells = cells or CELLS.get(genes) or max(1, 80000 // genes)
        return cls(bags, genes, keys, cells, genes if dense else vocabulary, members)

    def __str__(self) -> str:
        return f"{self.bags}, {self.genes} genes, {self.keys} as keys, {self.cells} cells, {self.model} model"


def regulators(point: Point, seed: int = 0) -> Tensor | None:
    """Vocabulary positions of the regulators, in order; None: all genes."""
    if point.keys == "all":
        return None
    count = max(1, round(REGULATORS * point.vocabulary))
    return torch.randperm(point.vocabulary, generator=torch.Generator().manual_seed(seed))[:count].sort().values


def batches(point: Point, count: int, seed: int = 0) -> list[Batch]:
    """Training batches like those of grn/cells/loading/batches.py, of simulated cells; on the CPU."""
    random = torch.Generator().manual_seed(seed)
    chosen = regulators(point, seed)
    programs = torch.randn(CLASSES, point.vocabulary, generator=random)
    return [_batch(point, chosen, programs, random) for _ in range(count)]


def _batch(point: Point, chosen: Tensor | None, programs: Tensor, random: torch.Generator) -> Batch:
    """programs [classes, V]: log levels of the genes per class, which the model can learn."""
    masked_fraction = DEFAULTS.objectives.masked_multiplicity.fraction
    absent_fraction = 0.1  # as in CellsDataModule
    cells, shape = point.cells, (point.cells, point.vocabulary)
    chance = torch.rand(shape, generator=random)
    masked, extra = chance < masked_fraction, chance < masked_fraction * absent_fraction
    if point.bags == "dense":
        present = torch.rand(shape, generator=random) < EXPRESSED
    else:
        present = _present(point, masked_fraction * absent_fraction, random)
    labels = torch.randint(CLASSES, (cells,), generator=random)
    before = present * torch.exp(0.5 * (programs[labels] + torch.randn(shape, generator=random)))
    visible = before.masked_fill(masked, 0)
    basal = torch.rand(cells, generator=random) + 0.5
    own = before if chosen is None else before[:, chosen]
    importance = None
    if point.bags == "dense":
        bags = Bags(torch.arange(point.genes), visible, None, basal, own)
    else:
        listed = present | extra  # every expressed gene, and some of the absent ones that are masked
        offsets = torch.cat([torch.zeros(1, dtype=torch.long), listed.sum(1).cumsum(0)])
        bags = Bags(listed.nonzero()[:, 1], visible[listed], offsets, basal, own)
        importance = torch.where(masked, torch.where(present, 1.0, 1 / absent_fraction), 0.0)[listed]
        before, masked = before[listed], masked[listed]
    return Batch(bags, before, masked, torch.arange(cells), labels, torch.full((cells,), torch.nan), importance)


def _present(point: Point, listed_absent: float, random: torch.Generator) -> Tensor:
    """Genes that packed cells express, bool [C, V], so many that bags with their absent genes have the right sizes."""
    sizes = point.genes * (1 + point.spread * (2 * torch.rand(point.cells, generator=random) - 1))
    counts = ((sizes - listed_absent * point.vocabulary) / (1 - listed_absent)).round().clamp(1, point.vocabulary)
    rank = torch.rand(point.cells, point.vocabulary, generator=random).argsort(1).argsort(1)
    return rank < counts[:, None]


Attention = Callable[..., Tensor]
REFUSED = ("No available kernel", "No viable backend")  # torch's messages where a forced backend cannot take a call


class Taken(torch.autograd.Function):
    """rows[slots] for slots that all differ, so that the gradient is a copy; index_select's adds with atomics."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, slots: Tensor) -> Tensor:
        ctx.save_for_backward(slots)
        ctx.rows = len(rows)
        return rows.index_select(0, slots)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (slots,) = ctx.saved_tensors
        return grad.new_zeros(ctx.rows, *grad.shape[1:]).index_copy_(0, slots, grad), None


def slots_of(offsets: Tensor, rows: int) -> tuple[int, Tensor]:
    """Length L of the longest bag, and for each packed row its slot among bags of L rows.

    Cached for each `offsets`, because it synchronises with the GPU.
    """

    def find() -> tuple[int, Tensor]:
        sizes = offsets.diff()
        longest = int(sizes.max())
        shift = torch.arange(len(sizes), device=offsets.device) * longest - offsets[:-1]
        shift = torch.repeat_interleave(shift, sizes, output_size=rows)
        return longest, torch.arange(rows, device=offsets.device) + shift

    return cached(offsets, "benchmark: slots", find)


class Softmax:
    """scaled_dot_product_attention with the signature of spherical_attention; ignores multiplicities.

    forced: the backend of gene queries. The summary is one query per cell, which not every backend takes and which
    costs next to nothing: torch chooses its backend. kernel: the backend of gene queries, after the first call.
    """

    def __init__(self, forced: SDPBackend | None = None):
        self.forced, self.kernel, self.repeat = forced, "", False

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        multiplicity: Tensor | None = None,
        *,
        offsets: Tensor | None = None,
        query_offsets: Tensor | None = None,
        eps: float = 0.0,
        group: None = None,
    ) -> Tensor:
        if offsets is None:
            return self.dense(q, k, v)
        query_offsets = offsets if query_offsets is None else query_offsets
        longest, slots = slots_of(query_offsets, len(q))
        keys = slots_of(offsets, len(k))
        shape = (len(offsets) - 1, -1)
        padded = (_pad(x, *place, shape) for x, place in ((q, (longest, slots)), (k, keys), (v, keys)))
        return Taken.apply(self.dense(*padded).transpose(1, 2).flatten(0, 1), slots)  # type: ignore[no-any-return]

    def dense(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """q [C, H, N, E], k and v [C, K, M, E] -> [C, H, N, E]."""
        force = self.forced is not None and q.shape[-2] > 1
        if q.shape[-2] > 1 and not self.kernel:
            self.kernel = self.forced.name if self.forced else _choice(q, k, v)
        with sdpa_kernel(self.forced) if force else nullcontext():
            if not (force and self.repeat):
                try:
                    return scaled_dot_product_attention(q, k, v, enable_gqa=True)
                except RuntimeError as error:
                    if not force or not str(error).startswith(REFUSED):
                        raise
            # This backend needs a key head for every query head.
            found = scaled_dot_product_attention(q, *_repeated(q, k, v))
            if not self.repeat:
                self.repeat, self.kernel = True, f"{self.kernel}, keys repeated"
            return found


class Varlen:
    """FlashAttention over packed bags without padding; on a GPU, in half precision."""

    kernel = "FLASH_ATTENTION"

    def __call__(self, q, k, v, multiplicity=None, *, offsets, query_offsets=None, eps=0.0, group=None) -> Tensor:
        from torch.nn.attention.varlen import varlen_attn

        options = {}
        if "enable_gqa" in inspect.signature(varlen_attn).parameters:
            options["enable_gqa"] = True
        else:
            k, v = _repeated(q, k, v, axis=1)
        query_offsets = offsets if query_offsets is None else query_offsets
        longest, starts = zip(*(_starts(each) for each in (query_offsets, offsets)), strict=True)
        return varlen_attn(q.contiguous(), k.contiguous(), v.contiguous(), *starts, *longest, **options)


def _pad(rows: Tensor, longest: int, slots: Tensor, shape: tuple[int, int]) -> Tensor:
    """Packed rows [T, heads, E] -> [C, heads, L, E], zeros where a bag is shorter."""
    padded = rows.new_zeros(shape[0] * longest, *rows.shape[1:]).index_copy_(0, slots, rows)
    return padded.unflatten(0, shape).transpose(1, 2)


def _repeated(q: Tensor, k: Tensor, v: Tensor, axis: int = 1) -> tuple[Tensor, Tensor]:
    times = q.shape[axis] // k.shape[axis]
    return k.repeat_interleave(times, axis), v.repeat_interleave(times, axis)


def _choice(q: Tensor, k: Tensor, v: Tensor) -> str:
    """The backend that torch chooses."""
    try:
        chosen = torch._fused_sdp_choice(q, k, v, None, 0.0, False, enable_gqa=True)
        return next((name for name, each in SDPBackend.__members__.items() if int(each) == chosen), str(chosen))
    except (AttributeError, TypeError):  # a private function of torch, which may change
        return "not known"


def _starts(offsets: Tensor) -> tuple[int, Tensor]:
    """The longest bag, and the offsets as int32."""
    return cached(offsets, "benchmark: starts", lambda: (int(offsets.diff().max()), offsets.int()))


# Name of a method -> makes what replaces spherical_attention, once for every point; None: nothing is replaced.
METHODS: dict[str, Callable[[], Any] | None] = {
    "flashsign": None,
    "flashsign stream": lambda: partial(spherical_attention, method="stream"),
    "SDPA": Softmax,
    "SDPA cuDNN": partial(Softmax, SDPBackend.CUDNN_ATTENTION),
    "varlen": Varlen,
}


def methods_at(names: tuple[str, ...], bags: str, path: str) -> tuple[str, ...]:
    """The methods of a point: varlen for packed bags alone, a forced stream where flashsign would choose moments."""
    left_out = {"varlen": bags != "packed", "flashsign stream": path in ("stream", "torch")}
    return tuple(name for name in names if not left_out.get(name))


@contextmanager
def attending(attention: Attention | None) -> Iterator[None]:
    """Within, models attend by this function (None: by their own)."""
    with mock.patch.object(grn.model.transformer, "spherical_attention", attention) if attention else nullcontext():
        yield


PRECISIONS = ("bf16-mixed", "32-true")
WARMUPS, LEAST, MOST = 8, 20, 200  # steps; the warm-up takes every batch, so that nothing compiles later
BATCHES = 4


class Training:
    """A model in training on some batches, again and again."""

    def __init__(
        self,
        point: Point,
        batches: list[Batch],
        device: torch.device,
        precision: str,
        *,
        total: int = DEFAULTS.trainer.max_steps,
        dropout: float | None = None,
        seed: int = 0,
        compiled: bool = False,
    ):
        self.device, self.precision = device, precision
        model = build_model(point, batches[0], dropout, seed).to(device)
        for part in model.modules():
            if isinstance(part, Fusible):
                part.fused = compiled
        self.task = Task(model, DEFAULTS.objectives, DEFAULTS.trainer, total).to(device).train()
        built = self.task.configure_optimizers()
        self.optimizer, self.schedule = built["optimizer"], built["lr_scheduler"]["scheduler"]
        self.batches = itertools.cycle([batch.to(device) for batch in batches])

    def autocast(self) -> AbstractContextManager:
        if self.precision == "32-true":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def loss(self, batch: Batch) -> Tensor:
        _, losses = self.task.losses(batch)
        return total_loss(mean_losses(losses), self.task.weights)

    def step(self) -> Tensor:
        """Forward, objectives, backward, clipping and AdamW; returns the loss."""
        batch = next(self.batches)
        self.task.on_train_batch_start(batch, 0)
        with self.autocast():
            loss = self.loss(batch)
        self.optimizer.zero_grad()
        loss.backward()
        self.task.batch, self.task.loss = batch, loss
        self.task.configure_gradient_clipping(self.optimizer)
        self.optimizer.step()
        self.schedule.step()
        return loss.detach()


def build_model(point: Point, batch: Batch, dropout: float | None, seed: int) -> Model:
    """As grn/training/building.py builds it, with a regulation layer that was not fitted, which costs as much."""
    torch.manual_seed(seed)
    settings = MODELS[point.model]
    settings = settings if dropout is None else settings.model_copy(update={"dropout": dropout})
    chosen, regulation = regulators(point), None
    if point.members:
        every = torch.arange(point.vocabulary) if chosen is None else chosen
        sizes = RegulationSettings.of(DEFAULTS.regulation)
        layer = RegulationLayer(point.members, point.vocabulary, every, sizes.heads, sizes.width)
        regulation = Regulation(layer.requires_grad_(False))
    model = Model(settings, point.vocabulary, regulators=chosen, classes=CLASSES, regulation=regulation)
    model.mean.fill_(float(batch.multiplicity.mean()))
    model.sd.fill_(float(batch.multiplicity.std()))
    return model


def flashsign_path(point: Point, precision: str, device: torch.device | Device) -> str:
    """The path of gene queries in training at a point: "stream" or "moments" (of Triton), or "torch"."""
    heads, key_heads = MODELS[point.model].query_heads, MODELS[point.model].key_heads
    width = MODELS[point.model].width // heads
    chosen = regulators(point)
    listed = 1.0 if chosen is None else len(chosen) / point.vocabulary
    keys = round(listed * point.genes) + 1  # of a cell, with its basal gene
    dtype = torch.bfloat16 if precision == "bf16-mixed" else torch.float32
    cells, genes = point.cells, point.genes
    if point.bags == "packed":
        q, k, bags = (cells * genes, heads, width), (cells * keys, key_heads, width), cells
    else:
        q, k, bags = (cells, heads, genes, width), (cells, key_heads, keys, width), None
    chosen = plan(q, k, dtype=dtype, bags=bags, gradients=True, device=device)
    return "torch" if chosen.backend == "torch" else chosen.method


class Measured(NamedTuple):
    """Seconds per step (median, quantiles at 20 and 80 %), how many were timed, peak memory in GiB (CPU: nan)."""

    s_per_step: float
    s_20: float
    s_80: float
    steps: int
    memory_gib: float


def measure(training: Training, budget_s: float, least: int = LEAST, warmups: int = WARMUPS) -> Measured:
    """Times at least `least` steps, and more as long as they fit the budget.

    A time is that between two events around a step, the time that the GPU waits for the host included.
    """
    device = training.device
    for _ in range(warmups):
        training.step()
    synchronise(device)
    repeated = itertools.repeat(training.step)
    rough = min(times(repeated, 2, device)) / 1000
    count = int(min(max(budget_s / max(rough, 1e-6), least), max(MOST, least)))
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    found = torch.tensor(times(repeated, count, device), dtype=torch.float64) / 1000
    peak = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else float("nan")
    low, middle, high = torch.quantile(found, torch.tensor([0.2, 0.5, 0.8], dtype=torch.float64)).tolist()
    return Measured(middle, low, high, count, peak)


def measured(
    point: Point,
    batches: list[Batch],
    device: torch.device,
    precision: str,
    budget_s: float,
    least: int = LEAST,
    compiled: bool = False,
) -> Measured:
    """The steps of a new model, with the attention that `attending` sets."""
    release(device, collect=True)
    return measure(Training(point, batches, device, precision, compiled=compiled), budget_s, least, 2 * len(batches))
