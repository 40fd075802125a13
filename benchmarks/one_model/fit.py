"""The fit of the one model: one optimiser, one loop, all members at once, from random values.

Each member does not see the cells of its fold; these choose the penalties and the step whose weights are kept.

    loss = squared error of the genes asked for + penalty of slopes + cross entropy of the types + error of all genes

Letters as in model.py; C cells.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from model import Model, Shape
from torch import Tensor
from torch.nn import functional as F

MOST = 20.0  # sds from the mean, where multiplicities are cut off


@dataclass
class Cells:
    """x [C, N]: multiplicities.   regulators [R]: positions.   depth [C].   state [C]: 0 to S - 1, or None."""

    x: Tensor
    regulators: Tensor
    depth: Tensor
    state: Tensor | None = None
    within: float = 1.0  # share of the states' levels that counts as composition, not as regulation
    noise: Tensor | None = None  # variance of each regulator that counting makes, [R]
    like: Cells | None = None  # whose means and units are used
    labels: Tensor | None = None  # [C], -1 where missing
    counts: Tensor | None = None  # [C, N], to be thinned; with what one count adds to exp(x) - 1, [C]
    count_unit: Tensor | None = None

    def __post_init__(self) -> None:
        if self.state is None:
            self.state = torch.zeros(len(self.x), dtype=torch.int64, device=self.x.device)
        self.states = int(self.state.max()) + 1
        like, S = self.like or self, int(self.state.max()) + 1
        if self.like is None:
            self.mean = self.x.mean(0)
            hot = F.one_hot(self.state, S).to(self.x)
            level = torch.lerp(self.mean.expand(S, -1), hot.T @ self.x / hot.sum(0)[:, None], self.within)
            self.sd = (self.x - level[self.state]).square().mean(0).sqrt().clamp(min=1e-3)
            self.spread = self.x.std(0).clamp(min=1e-3)  # with the differences between states, for the identity token
            self.depths = (self.depth.mean(), self.depth.std().clamp(min=1e-6))
        self.mean, self.sd, self.spread, self.depths, self.states = (
            like.mean,
            like.sd,
            like.spread,
            like.depths,
            like.states,
        )
        self.y = ((self.x - self.mean) / self.sd).clamp(-MOST, MOST)
        depth = 4 + (self.depth - self.depths[0]) / self.depths[1]
        regulators = (self.y + self.mean / self.sd)[:, self.regulators]
        self.m = torch.cat([regulators, depth[:, None]], 1)
        self.different = ((self.x - self.mean) / self.spread).clamp(-8, 8)
        self.own = torch.full((self.x.shape[1],), -1, device=self.x.device)
        self.own[self.regulators] = torch.arange(len(self.regulators), device=self.x.device)


@dataclass(frozen=True)
class Settings:
    steps: int = 1500
    batch: int = 128
    targets: int = 128  # of a step, besides the regulators
    withins: tuple[float, ...] = ()  # of the members in turn; (): that of the cells
    rate: float = 5e-3  # of block 1
    other_rate: float = 2e-3
    decay: float = 0.3  # AdamW's, of the second block
    identity_decay: float = 0.05
    strength: float = 1.0  # times the penalties that ridge chooses
    within: float = 1.0  # share of the types' levels that counts as composition (quasi-demeaning)
    identity_rate: float = 4e-3
    identity_batch: int = 128
    identity_every: int = 2  # steps
    gene_weights: tuple[float, float] = (10.0, 300.0)  # of predicting all genes, of every other member
    dropped: float = 0.6  # each cell hides its own share of genes, up to this
    thinned: float = 0.3  # half of the cells keep a share of their counts, from this on
    validate: int = 100
    averaging: float = 0.99
    seed: int = 0


def folds(cells: Cells, members: int, seed: int) -> Tensor:
    """The fold of each cell, stratified by label or state: [C]. Of a model of types, two members see the same cells."""
    generator = np.random.default_rng(seed)
    kind = (cells.state if cells.labels is None else cells.labels).cpu().numpy()
    fold, start = np.empty(len(kind), np.int64), 0
    for s in np.unique(kind):
        rows = generator.permutation(np.flatnonzero(kind == s))
        fold[rows] = (np.arange(len(rows)) + start) % max(members, 5)
        start += len(rows)
    return torch.tensor(fold, device=cells.x.device)


def held_by(shape: Shape) -> list[int]:
    """The fold that each member does not see."""
    return [p // 2 if shape.types else p for p in range(shape.members)]


def demeaned(cells: Cells, rows: Tensor, within: float | None = None) -> tuple[Tensor, Tensor]:
    """Mean multiplicities [S, R + 1] and levels [S, N] that states keep for themselves, from the cells of `rows`."""
    hot = F.one_hot(cells.state[rows], cells.states).to(cells.m)
    count = hot.sum(0)[:, None].clamp(min=1)
    found = [
        torch.lerp(
            a[rows].mean(0).expand(cells.states, -1),
            hot.T @ a[rows] / count,
            cells.within if within is None else within,
        )
        for a in (cells.m, cells.y)
    ]
    return found[0], found[1]


@dataclass(frozen=True)
class Penalty:
    """lam t^2 log(1 + g / t^2), with g = shared slope^2 + sum over states of (deviation / rho)^2: a regulator acts on a
    gene in some state, or in none. t = 0: lam g, which is ridge."""

    lam: float
    rho: float = 1.0
    t: float = 0.0


FORMS = (
    (0.0, 1.0),
    (0.1, 1.0),
    (0.1, 2.0),
    (0.05, 2.0),
    (0.05, 4.0),
    (0.03, 4.0),
    (0.03, 8.0),
)  # t, times lam of ridge
RIDGE = tuple(10 ** np.arange(0.5, 4.6, 0.25))
KEPT = 3  # of the best penalties, which the members take in turn
OPERATIONS, OPERATIONS_ON_GPU = 8e10, 3e12  # that choosing a penalty may take


def counting(cells: Cells) -> tuple[Tensor, Tensor]:
    """r [R]: share of counting in what the other regulators leave of each; and the sd of m', by ridge: statistics."""
    R = len(cells.regulators)
    if cells.noise is None or R < 2:
        return torch.zeros(R, device=cells.m.device), torch.ones(R + 1, device=cells.m.device)
    centre, _ = demeaned(cells, torch.arange(len(cells.m), device=cells.m.device))
    x = (cells.m - centre[cells.state])[:, :-1].double()
    inverse = torch.linalg.inv(x.T @ x + 10 * torch.eye(R, device=x.device))
    hat = x @ (-inverse / inverse.diagonal()).fill_diagonal_(0)
    share = (cells.noise / cells.sd[cells.regulators] ** 2 / (x - hat).var(0).clamp(min=1e-6)).clamp(0, 0.8)
    return share.float(), F.pad((x + share * (hat - x)).std(0).clamp(min=1e-3).float(), (0, 1), value=1.0)


def choose(cells: Cells, fold: Tensor, rhos=(0.25, 1.0, 2.0), forms=FORMS, tries: int = 2, say=None) -> list[Penalty]:
    """The penalties whose (reweighted) ridge predicts held-out cells best, from some of the genes, the best first; last
    that of block 1."""
    S, R, device = cells.states, len(cells.regulators), cells.x.device
    share, unit = counting(cells)
    tries = tries if R * (S + 1) < 300 else 1
    target = torch.nonzero(cells.own < 0)[:, 0]
    target = target if len(target) else torch.arange(len(cells.own), device=device)
    target = target[torch.randperm(len(target), generator=torch.Generator().manual_seed(0)).to(device)]
    systems, tried = [], []
    for f in range(tries):
        held, rows = fold == f, torch.nonzero(fold != f)[:, 0]
        centre, level = demeaned(cells, rows)
        x, y = cells.m - centre[cells.state], (cells.y - level[cells.state])[:, target].double()
        if share.any():
            inverse = torch.linalg.inv(x[rows, :-1].T @ x[rows, :-1] + 10 * torch.eye(R, device=device))
            hat = x[:, :-1] @ (-inverse / inverse.diagonal()).fill_diagonal_(0)
            x = torch.cat([x[:, :-1] + share * (hat - x[:, :-1]), x[:, -1:]], 1) / unit
        systems.append((held, rows, x, y))

    def error_of(rho, lams, t, n, steps):
        D, total = R + 1 + (S * R if S > 1 and rho else 0), torch.zeros(len(lams), device=device)
        group = torch.cat([torch.arange(R + 1), torch.arange(R).repeat((D - R - 1) // R)]).to(device)
        for held, rows, x, y in systems:
            hot = F.one_hot(cells.state, S).to(x)
            z = (torch.cat([x, rho * (hot[:, :, None] * x[:, None, :-1]).flatten(1)], 1) if D > R + 1 else x).double()
            A, B = z[rows].T @ z[rows], z[rows].T @ y[rows, :n]
            for number, lam in enumerate(lams):
                base = torch.full((D,), lam, device=device, dtype=z.dtype)
                base[R] = 1e-3
                w = torch.linalg.solve(A + torch.diag(base), B)
                for _ in range(steps if t else 0):
                    g = torch.zeros(R + 1, w.shape[1], device=device, dtype=z.dtype).index_add_(0, group, w.square())
                    factor = 1 / (1 + g / t**2)
                    factor[R] = 1
                    w = torch.linalg.solve(A + torch.diag_embed((base[:, None] * factor[group]).T), B.T[..., None])[
                        ..., 0
                    ].T
                total[number] += (z[held] @ w - y[held, :n]).square().mean() / tries
        return total

    ridge = error_of(0.0, RIDGE, 0.0, len(target), 0)
    lam0 = RIDGE[int(ridge.nan_to_num(9.0).argmin())]
    rhos = rhos if S > 1 else (0.0,)
    for rho in rhos:
        lams = [lam0 * 2.0**k for k in (-1, 0, 1, 2)] if S > 1 else [lam0]
        found = error_of(rho, lams, 0.0, len(target), 0)
        lam = lams[int(found.nan_to_num(9.0).argmin())]
        D = R + 1 + S * R * (S > 1)
        n = int(
            min(
                len(target),
                max(16, (OPERATIONS_ON_GPU if x.is_cuda else OPERATIONS) / (tries * 4 * len(forms) * len(rhos) * D**3)),
            )
        )
        for t, strength in forms:
            error = float(error_of(rho, [lam * strength], t, n, 4).nan_to_num(9.0))
            tried.append((error, Penalty(lam * strength, rho, t)))
            if say:
                say(f"{tried[-1]}")
    return [penalty for _, penalty in sorted(tried, key=lambda one: one[0])[:KEPT]] + [among(cells, fold)]


def among(cells: Cells, fold: Tensor) -> Penalty:
    """The ridge penalty with which the regulators predict each other best."""
    held, rows = fold == 0, torch.nonzero(fold != 0)[:, 0]
    centre, _ = demeaned(cells, rows)
    x = (cells.m - centre[cells.state])[:, :-1].double()
    A, errors = x[rows].T @ x[rows], []
    for lam in RIDGE:
        inverse = torch.linalg.inv(A + lam * torch.eye(len(A), device=x.device))
        hat = x[held] @ (-inverse / inverse.diagonal()).fill_diagonal_(0)
        errors.append(float((x[held] - hat).square().mean()))
    return Penalty(RIDGE[int(np.argmin(errors))])


def cost(slope: Tensor, penalties: list[Penalty]) -> Tensor:
    """slope [P, S, n, R] -> the sum over slopes, [P]. Members take the penalties in turn."""

    def of(name):
        return torch.tensor(
            [getattr(penalties[p % len(penalties)], name) for p in range(len(slope))],
            device=slope.device,
            dtype=slope.dtype,
        )

    lam, rho, t = of("lam"), of("rho").clamp(min=0.05)[:, None, None], of("t")[:, None, None]
    g = slope[:, 0].square()
    if slope.shape[1] > 1:
        shared = slope.mean(1)
        g = shared.square() + (slope - shared[:, None]).square().sum(1) / rho**2
    g = torch.where(t > 0, t**2 * torch.log1p(g / t.clamp(min=1e-3) ** 2), g)
    return lam * g.sum((1, 2))


class Sampler:
    """Rows of cells, [P, G, B]: for each member as many of each state, none of its fold."""

    def __init__(self, cells: Cells, fold: Tensor, held: list[int], batch: int):
        S, _members = cells.states, len(held)
        lists = [[torch.nonzero((cells.state == s) & (fold != p))[:, 0] for s in range(S)] for p in held]
        self.count = torch.tensor([[len(a) for a in of] for of in lists], device=cells.x.device)
        self.rows = torch.stack(
            [
                torch.nn.utils.rnn.pad_sequence(
                    [F.pad(a, (0, int(self.count.max()) - len(a))) for a in of], batch_first=True
                )
                for of in lists
            ]
        )
        share = torch.bincount(cells.state, minlength=S).float()
        self.weight, self.each = share / share.sum(), max(8, batch // S)

    def draw(self) -> Tensor:
        P, S, _ = self.rows.shape
        at = (torch.rand(P, S, self.each, device=self.rows.device) * self.count[..., None]).long()
        return self.rows.gather(2, at)


def prepare(cells: Cells, shape: Shape, settings: Settings) -> tuple[Model, Tensor]:
    torch.manual_seed(settings.seed)
    fold = folds(cells, shape.members, settings.seed)
    model = Model(shape, cells.own).to(cells.x.device)
    model.counting, model.unit = counting(cells)
    for p, held in enumerate(held_by(shape)):
        centre, level = demeaned(
            cells,
            torch.nonzero(fold != held)[:, 0],
            settings.withins[p % len(settings.withins)] if settings.withins else None,
        )
        for block, unit in ((model.first, 1.0), (model.second, model.unit)):
            block.centre[p], block.square[p] = centre / unit, (centre / unit).square() + 1
            block.level[p] = level[:, cells.regulators] if block is model.first else level
    return model, fold


def fit(cells: Cells, shape: Shape, settings: Settings, penalties: list[Penalty], say=None):
    """The trained model and the held-out error of each member [P, N] (in squared units of the genes)."""
    device, P, S, N, R = cells.x.device, shape.members, cells.states, cells.x.shape[1], shape.regulators
    model, fold = prepare(cells, shape, settings)
    sampler = Sampler(cells, fold, held_by(shape), settings.batch)
    rates = dict(first=settings.rate, second=settings.rate, basal=settings.other_rate, identity=settings.identity_rate)
    decays = dict(first=0.0, second=0.0, basal=settings.decay, identity=settings.identity_decay)
    groups = [
        dict(params=list(part.parameters()), lr=rates[name], weight_decay=decays[name])
        for name, part in model.named_children()
    ]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98))
    plan = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, [g["lr"] for g in groups], total_steps=settings.steps + 1, pct_start=0.05
    )
    seen = sampler.count.sum(1).to(device)  # cells of each member
    state, every, regulators = (
        torch.arange(S, device=device),
        torch.nonzero(cells.own < 0)[:, 0],
        torch.arange(R, device=device),
    )
    best, saved = (
        torch.full((P,), math.inf, device=device),
        {k: v.detach().clone() for k, v in model.named_parameters()},
    )
    average = {k: v.detach().clone() for k, v in model.named_parameters()}
    opened = settings.steps // 2 // settings.identity_every * settings.identity_every  # then c sees all cells
    if model.identity is not None:
        model.identity.scale = cells.x.square().mean().rsqrt()
    for step in range(settings.steps):
        model.train()
        rows = sampler.draw()
        some = (
            every
            if len(every) <= settings.targets
            else every[torch.randperm(len(every), device=device)[: settings.targets]]
        )
        pick = torch.cat([cells.regulators, some])
        m, y = cells.m[rows], cells.y[:, pick][rows]
        hidden = torch.rand(m.shape, device=device) < shape.masked if shape.summary else None
        scores = (model.first.scores(regulators), model.second.scores(some))
        out = model.both(m, state, some, hidden, scores)
        error = (out - y).square().mean(2)  # [P, S, n]
        error = (error * sampler.weight[:, None]).sum(1)
        share = max(len(some), 1) / max(len(every), 1)
        of = (error[:, :R].sum(1) + error[:, R:].sum(1) / share) / N
        shrink = (
            cost(model.first.slopes(scores[0], regulators), penalties[-1:])
            + cost(model.second.slopes(scores[1], some), penalties[:-1]) / share
        )
        loss = (of + shrink / N / seen).sum()
        if model.identity is not None and step % settings.identity_every == 0:
            if step == opened:
                weigh(model, cells, fold)
            loss = loss + identity_loss(model, cells, fold if step < opened else torch.full_like(fold, -1), settings)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        plan.step()
        with torch.no_grad():
            keep = min(settings.averaging, (step + 1) / (step + 10))
            torch._foreach_lerp_(list(average.values()), [p.detach() for p in model.parameters()], 1 - keep)
        if (step + 1) % settings.validate == 0 or step + 1 == settings.steps:
            now = {k: v.detach().clone() for k, v in model.named_parameters()}
            put(model, average)
            found = held_out(model, cells, fold)[:, every].mean(1)
            better = found < best
            best = torch.where(better, found, best)
            for k, v in average.items():
                saved[k][better] = v[better]
            put(model, now)
            if say:
                say(f"{step + 1} {found.mean():.4f}")
    put(model, saved)
    return model.eval(), held_out(model, cells, fold)


def identity_loss(model: Model, cells: Cells, fold: Tensor, settings: Settings) -> Tensor:
    """Types of the labelled cells and all genes of all cells, of cells that hide genes and have lost counts."""
    device, identity, B = cells.x.device, model.identity, settings.identity_batch
    known = cells.labels >= 0
    weight = torch.where(known, 0.5 / known.sum().clamp(min=1), 0.5 / (~known).sum().clamp(min=1))
    rows = torch.multinomial(weight if not known.all() else torch.ones_like(weight), B, replacement=False)
    x, target = cells.x[rows], cells.different[rows]
    if cells.counts is not None and settings.thinned < 1:
        share = torch.exp(math.log(settings.thinned) * torch.rand(B, 1, device=device))
        share = torch.where(torch.rand(B, 1, device=device) < 0.5, 1.0, share)
        counts = torch.binomial(cells.counts[rows], share.expand(-1, x.shape[1]))
        x = torch.log1p(counts * (cells.count_unit[rows][:, None] / share))
    z = ((x - cells.mean) / cells.spread).clamp(-8, 8)
    drop = settings.dropped * torch.rand(B, 1, device=device) * (torch.rand(B, 1, device=device) >= 0.25)
    kept = torch.rand(x.shape, device=device) >= drop
    summary, logits = identity(x * kept * identity.scale, z * kept)
    P = len(logits)
    held = torch.tensor([p // 2 for p in range(P)], device=device)
    own = (fold[rows] != held[:, None]).float()  # [P, B]
    seen, labels = own * (cells.labels[rows] >= 0), cells.labels[rows].clamp(min=0)
    types = F.cross_entropy(logits.flatten(0, 1), labels.repeat(P), label_smoothing=0.1, reduction="none").view(P, B)
    some = torch.randperm(x.shape[1], device=device)[:256]
    genes = (summary @ identity.predict[:, :, some] - target[:, some]).square().mean(2)

    def mean(loss, of):
        return (loss * of).sum(1) / of.sum(1).clamp(min=1)

    kind = torch.tensor(settings.gene_weights, device=device)[torch.arange(P, device=device) % 2]
    return ((mean(types, seen) + kind * mean(genes, own)) / (1 + kind)).sum()


@torch.no_grad()
def odds(model: Model, cells: Cells, rows: Tensor) -> Tensor:
    """Every member's log probabilities of the types, [P, C, K]."""
    model.eval()
    return torch.cat([model.identity.of_members(cells.x[r], cells.different[r]) for r in rows.split(1024)], 1)


def weigh(model: Model, cells: Cells, fold: Tensor) -> None:
    """What the log probabilities of each kind of member count: the least log loss on cells that they have not seen."""
    P = model.shape.members
    judged = torch.nonzero((fold < P // 2) & (cells.labels >= 0))[:, 0]
    found, at = odds(model, cells, judged), torch.arange(len(judged), device=judged.device)
    model.train()
    kinds = torch.stack([found[2 * fold[judged] + kind, at] for kind in (0, 1)])
    log = torch.full((2,), math.log(0.5), device=found.device, requires_grad=True)
    optimizer = torch.optim.LBFGS([log], max_iter=50, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        with torch.enable_grad():
            logits = (log.exp()[:, None, None] * kinds).sum(0)
            total = (
                F.cross_entropy(logits, cells.labels[judged], reduction="sum") + 4.0 * (log.exp() - 0.5).square().sum()
            )
            total.backward()
        return total

    optimizer.step(loss)
    model.identity.importance = (log.detach().exp() / (P // 2)).repeat(P // 2)


def labels_of(model: Model, cells: Cells) -> Tensor:
    """Log odds of the types, [C, K]."""
    found = odds(model, cells, torch.arange(len(cells.x), device=cells.x.device))
    return (model.identity.importance[:, None, None] * found).sum(0)


@torch.no_grad()
def put(model: Model, values: dict[str, Tensor]) -> None:
    for name, parameter in model.named_parameters():
        parameter.copy_(values[name])


@torch.no_grad()
def predict(model: Model, cells: Cells, rows: Tensor, chunk: int = 512) -> Tensor:
    """Every member's prediction of every gene: [P, C, N]. Cells are read state by state."""
    model.eval()
    P, N = model.shape.members, model.shape.genes
    pick = torch.arange(N, device=cells.x.device)
    out, scores = torch.empty(P, len(rows), N, device=cells.x.device), all_scores(model)
    for s in range(cells.states):
        for at in torch.nonzero(cells.state[rows] == s)[:, 0].split(chunk):
            m = cells.m[rows[at]].expand(P, 1, -1, -1)
            out[:, at] = model(m, torch.tensor([s], device=m.device), pick, None, scores)[:, 0]
    return out


@torch.no_grad()
def held_out(model: Model, cells: Cells, fold: Tensor) -> Tensor:
    """Squared error of each member on its fold: [P, N]."""
    model.eval()
    P, N = model.shape.members, model.shape.genes
    error, count = torch.zeros(P, N, device=cells.x.device), torch.zeros(P, 1, device=cells.x.device)
    pick = torch.arange(N, device=cells.x.device)
    scores = all_scores(model)
    for s in range(cells.states):
        rows = [torch.nonzero((fold == p) & (cells.state == s))[:, 0] for p in held_by(model.shape)]
        size = min(max(len(r) for r in rows), 400)
        at = torch.stack([F.pad(r[:size], (0, size - len(r[:size]))) for r in rows])
        real = torch.stack([torch.arange(size, device=r.device) < len(r) for r in rows])
        y = model(cells.m[at][:, None], torch.tensor([s], device=at.device), pick, None, scores)[:, 0]
        error += ((y - cells.y[at]).square() * real[..., None]).sum(1)
        count += real.sum(1, keepdim=True)
    return error / count


def all_scores(model: Model) -> tuple[Tensor, Tensor]:
    return tuple(
        block.scores(torch.arange(len(block.own), device=block.own.device)) for block in (model.first, model.second)
    )


@torch.no_grad()
def network(model: Model) -> Tensor:
    """Direct effects, in sds of the gene for an sd of m': of block 1 on regulators, of block 2 on others [S, R, N]."""
    first, second = (
        block.slopes(s, torch.arange(len(block.own), device=s.device)).mean(0)[..., :-1].mT
        for block, s in zip((model.first, model.second), all_scores(model), strict=True)
    )
    found = second.clone()
    found[..., model.own >= 0] = first[..., model.own[model.own >= 0]]
    return found


@torch.no_grad()
def effects(model: Model, cells: Cells, most: int = 256, step: float = 0.5, total: bool = False) -> Tensor:
    """What raising a regulator by a sd adds to a gene, the mean over cells of each state: [S, R, N], the members' mean.

    Direct: of block 1 on regulators, of blocks 2 and 3 at m' on other genes.   total: of a regulator's count, through
    all blocks. Differences of half a sd up and half a sd down."""
    model.eval()
    N, R, P = model.shape.genes, model.shape.regulators, model.shape.members
    pick, found, scores = torch.arange(N, device=cells.x.device), [], all_scores(model)
    for s in range(cells.states):
        rows, state = torch.nonzero(cells.state == s)[:, 0], torch.tensor([s], device=cells.x.device)
        rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0)).to(rows.device)[:most]]
        m = cells.m[rows].expand(P, 1, -1, -1)
        expected = model.expected(m, model.among(m, state, scores[0]), state)
        out = torch.empty(R, N, device=m.device)
        for j in range(R):
            up = torch.zeros_like(m[0, 0, 0])
            up[j] = step
            if total:
                change = model(m + up, state, pick, None, scores) - model(m - up, state, pick, None, scores)
                out[j] = change.mean((0, 1, 2)) / (2 * step)
                continue
            change = model.of_genes(expected + up, state, pick, None, scores[1]) - model.of_genes(
                expected - up, state, pick, None, scores[1]
            )
            out[j] = change.mean((0, 1, 2)) / (2 * step)
            change = model.among(m + up, state, scores[0]) - model.among(m - up, state, scores[0])
            out[j, cells.regulators] = change.mean((0, 1, 2)) / (2 * step)
        found.append(out)
    return torch.stack(found)
