"""What the one model is compared with: ridge regression and a multilayer perceptron of the same inputs.

Error: mean squared error of standardised log1p-normalised targets on test cells, over that of their mean.
"""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F


def prepared(counts, tf, split, device):
    """Inputs [C, R + 2] (regulators, depth, 1), targets [C, N], rows to train, validate and test."""
    X = counts.astype(np.float32)
    tot = X.sum(1, keepdims=True).clip(1)
    L = np.log1p(X / tot * np.median(tot))
    p, n = np.random.default_rng(split).permutation(len(X)), len(X)
    rows = p[: int(0.7 * n)], p[int(0.7 * n) : int(0.8 * n)], p[int(0.8 * n) :]

    def z(a):
        return (a - a[rows[0]].mean(0)) / (a[rows[0]].std(0) + 1e-6)

    x = np.concatenate([z(L[:, tf]), z(np.log(tot)), np.ones_like(tot)], 1)

    def t(a):
        return torch.tensor(a, device=device)

    return (
        t(x),
        t(z(L[:, ~tf])),
        [t(i) for i in rows],
        t(L),
        t(np.log(tot[:, 0])),
        t(L[rows[0]].mean(0)),
        t(L[rows[0]].std(0) + 1e-6),
    )


def ridge(x, y, rows, penalties=(10, 30, 100, 300, 1000, 3000, 1e4, 3e4)):
    tr, va, te = rows
    A, B = x[tr].T @ x[tr], x[tr].T @ y[tr]
    W = torch.stack([torch.linalg.solve(A + p * torch.eye(len(A), device=x.device), B) for p in penalties])
    best = torch.stack([((y[va] - x[va] @ w) ** 2).mean(0) for w in W]).argmin(0)
    return x[te] @ W[best, :, torch.arange(y.shape[1], device=x.device)].T


class MLP(nn.Module):
    def __init__(self, N, R, width=256):
        super().__init__()
        self.body = nn.Sequential(
            nn.Dropout(0.1),
            nn.Linear(R + 2, width),
            nn.GELU(),
            nn.Dropout(0.5),
            nn.Linear(width, width),
            nn.GELU(),
            nn.Dropout(0.5),
        )
        self.read, self.bias = nn.Parameter(torch.zeros(N, width)), nn.Parameter(torch.zeros(N))

    def forward(self, x):
        return self.body(x) @ self.read.T + self.bias


def mlp(x, y, rows, seed, steps=1500, batch=256):
    """Test predictions of the weights that validate best."""
    torch.manual_seed(seed)
    tr, va, te = rows
    net = MLP(y.shape[1], x.shape[1] - 2).to(x.device)
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.3, betas=(0.9, 0.98))
    plan = torch.optim.lr_scheduler.OneCycleLR(opt, 2e-3, total_steps=steps, pct_start=0.05)
    best, kept = 9.0, None
    for step in range(steps):
        net.train()
        c = tr[torch.randint(len(tr), (batch,), device=x.device)]
        loss = F.mse_loss(net(x[c]), y[c])
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        plan.step()
        if step % 50 == 49:
            net.eval()
            with torch.no_grad():
                e = F.mse_loss(net(x[va]), y[va]).item()
                if e < best:
                    best, kept = e, net(x[te])
    return kept
