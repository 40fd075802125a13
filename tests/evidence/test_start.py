"""Where training starts: signed blocks at the exact solution of their linear problem, states at a
regression.
"""

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from sklearn.linear_model import LogisticRegression
from torch.nn import functional as F

from grn.config.schema import ModelConfig
from grn.evidence import exact
from grn.evidence import start as module
from grn.evidence.exact import Moments, solve
from grn.evidence.penalties import Shadow
from grn.evidence.start import penalties_of, start_blocks, start_states
from grn.model.penalty import Penalty
from grn.model.reader import ReaderShape
from grn.model.regulation import Model
from grn.training.building import set_units

CELLS, GENES, REGULATORS, STATES = 300, 14, 6, 2
STATE = np.arange(CELLS) % STATES
FOLD = np.arange(CELLS) // STATES % 5
PENALTIES = [
    [20 / CELLS, 1.0, 0.05],
    [40 / CELLS, 0.5, 0.0],
    [10 / CELLS, 0.0, 0.0],
]  # of two members and of block 1


def values() -> np.ndarray:
    """Genes of which the first regulate the others, in each state with slopes of its own."""
    generator = np.random.default_rng(1)
    x = generator.normal(size=(CELLS, REGULATORS)) + 0.5 * generator.normal(size=(CELLS, 1))
    slopes = generator.normal(size=(GENES - REGULATORS, REGULATORS))
    slopes = slopes + 0.5 * generator.normal(size=(STATES, *slopes.shape))
    y = np.einsum("cij,cj->ci", slopes[STATE], x) + generator.normal(
        size=(CELLS, GENES - REGULATORS)
    )
    return np.concatenate([x, y], 1) + 6 + STATE[:, None]


def fresh(states: int, layers: int = 1) -> Model:
    identity = ReaderShape(2, 0, summary=4, hidden=4, embedding=4, held_out=0)
    config, regulators = ModelConfig(members=2, hidden=8, layers=layers), torch.arange(REGULATORS)
    known = {"regulators": regulators, "states": states, "identity": identity}
    return Model(config, GENES, **known, genes_train=True)


@pytest.fixture
def started(make_table):
    def of(layers: int = 1, soft: bool = False, prior: bool = False, levels: float = 0.0):
        """A model that was started, and its table."""
        share = np.eye(STATES)[STATE]
        if soft:
            share = 0.9 * share + 0.1 * np.random.default_rng(2).dirichlet([1, 1], CELLS)
        known = {"basal": np.random.default_rng(3).random(CELLS), "levels": levels}
        if layers > 1:
            known["noise"] = sp.csr_matrix(np.full((CELLS, REGULATORS), 0.3, np.float32))
        table = make_table(values(), share, range(REGULATORS), **known)
        model = fresh(STATES, layers)
        set_units(model, table, FOLD)
        model.penalty.copy_(torch.tensor(PENALTIES))
        if prior:
            generator = torch.Generator().manual_seed(0)
            model.prior = torch.rand(GENES, REGULATORS, generator=generator) + 0.2
        assert start_blocks(model, table, FOLD) == 0, "nothing is left out"
        start_states(model, table, FOLD)
        return model.eval(), table

    return of


def linear(model: Model, table, member: int) -> np.ndarray:
    """What the exact solution with a member's penalty says of the targets beside levels of states,
    [C, n].
    """
    shadow, weight = Shadow(table, FOLD, member, genes=np.arange(REGULATORS, GENES)), None
    among, *of_members = penalties_of(model, FOLD)
    if model.layered:
        shadow.correct(shadow.among(among), model.counting.double(), model.unit.double())
    if model.prior is not None:
        weight = F.pad(model.prior[REGULATORS:].double() ** -2, (0, 1), value=1.0).mT
    moments = Moments.of(shadow.read, shadow.y, shadow.share, shadow.learned)
    slopes = solve(moments, of_members[member], weight=weight).of_states(STATES)
    return torch.einsum("cs,ck,skn->cn", shadow.share.double(), shadow.read, slopes).numpy()


def said(model: Model, table, member: int) -> np.ndarray:
    """What a member's second block says of the targets beside levels of states, in the mode that
    trains.
    """
    m, states, second = table.inputs, table.membership, model.blocks.train()[1]
    with torch.no_grad():
        corrected = model.corrected(m, model.among(m, states) if model.layered else None, states)
        y = second(corrected, states, torch.arange(GENES - REGULATORS))
        return (y - states @ second.means(second.level))[member].numpy()


@pytest.mark.parametrize("member", [0, 1])
@pytest.mark.parametrize(
    "options",
    [{}, {"layers": 2}, {"prior": True}, {"levels": 0.5}],
    ids=str,
)
def test_a_module_that_was_started_gives_the_exact_linear_function(started, options, member):
    """Its norms hardly bend;
    each member from the cells that it learns from, with its own penalty.
    """
    model, table = started(**options)
    expected, found = linear(model, table, member), said(model, table, member)
    assert expected.std() > 0.3
    assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] > 0.9999
    assert np.linalg.norm(found - expected) < 0.02 * np.linalg.norm(expected)


def test_of_cells_that_belong_to_several_states_it_gives_that_function_nearly(started):
    """A block counts differences from each state's own mean, its shadow those from the mean of the
    cell's states.
    """
    model, table = started(soft=True)
    for member in (0, 1):
        expected, found = linear(model, table, member), said(model, table, member)
        assert np.corrcoef(found.ravel(), expected.ravel())[0, 1] > 0.999
        assert np.linalg.norm(found - expected) < 0.05 * np.linalg.norm(expected)


def test_block_1_starts_with_what_the_regulators_say_of_each_other(started):
    """And no regulator of itself: it has the same in every state."""
    model, table = started(layers=2)
    first, shadow = model.blocks[0].train(), Shadow(table, FOLD, 1, genes=np.zeros(0, int))
    shared = shadow.among(penalties_of(model, FOLD)[0]).shared
    expected = shadow.x @ shared
    with torch.no_grad():
        states = table.membership
        found = (model.among(table.inputs, states) - states @ first.level)[1]
    assert (shared.diagonal() == 0).all() and expected.std() > 0.2
    assert float((found - expected).norm() / expected.norm()) < 0.02
    pick = torch.arange(REGULATORS)
    slopes = first.slopes(first.scores(pick), pick)
    assert (slopes.diagonal(dim1=-2, dim2=-1) == 0).all()


def test_members_start_from_the_cells_that_they_learn_from_alone(started, make_table):
    """With other genes in the cells of its fold, a member's queries are the same, and the other's
    are not.
    """
    model, table = started()
    other = values()
    own = FOLD == 0
    other[own, REGULATORS:] = other[own, REGULATORS:][:, ::-1]
    changed = make_table(other, STATE, range(REGULATORS), basal=table.basal)
    before = model.blocks[1].embedding.query.clone()
    vars(changed).update(mean=table.mean, sd=table.sd, moments=table.moments)  # in the same units
    start_blocks(model, changed, FOLD)
    found = model.blocks[1].embedding.query
    torch.testing.assert_close(found[0], before[0], rtol=1e-4, atol=1e-4)
    assert (found[1] - before[1]).abs().max() > 0.05


def test_targets_that_are_solved_in_parts_are_those_at_once(started, monkeypatch):
    for name, value in (("ITERATED", torch.float64), ("TOLERANCE", 1e-14), ("ON_THE_WAY", 1e-14)):
        # all targets of a part are iterated until its last one has settled
        monkeypatch.setattr(exact, name, value)
    whole = started(prior=True)[0].blocks.state_dict()
    monkeypatch.setattr(module, "TARGETS", 3)
    for name, tensor in started(prior=True)[0].blocks.state_dict().items():
        torch.testing.assert_close(tensor, whole[name], rtol=1e-4, atol=1e-5)


def test_penalties_are_over_the_cells_that_a_member_learns_from(started):
    model, _ = started()
    fold = np.repeat([0, 1, 2], [30, 90, 180])
    among, first, second = penalties_of(model, fold)
    assert first == Penalty(pytest.approx(20 / CELLS * 270), 1.0, pytest.approx(0.05))
    assert second == Penalty(pytest.approx(40 / CELLS * 210), 0.5, 0.0)
    assert among.lam == pytest.approx(10 / CELLS * 240)


def test_states_are_told_as_well_as_by_scikit_learn_with_the_best_penalty(started):
    """The cells of its fold have chosen it; scores are of regulators and depth."""
    model, table = started()
    m = table.inputs
    with torch.no_grad():
        scores = model.state_scores(m)
    centre = (model.share @ model.blocks[0].centre).mean(0)
    x, own = (m - centre).numpy(), FOLD != 0
    tried = []
    for decay in module.DECAYS:
        # A difference of two softmax scores has half of the squares that each has on its own.
        fit = LogisticRegression(C=2 / decay, tol=1e-8, max_iter=1000).fit(x[own], STATE[own])
        tried.append(
            (-fit.predict_log_proba(x[~own])[np.arange((~own).sum()), STATE[~own]].sum(), fit)
        )
    best = min(tried, key=lambda each: each[0])[1]
    np.testing.assert_allclose(scores[0].exp(), best.predict_proba(x), atol=2e-3)
    right = (model.inferred_states(m).argmax(1).numpy() == STATE).mean()
    assert right > 0.7
