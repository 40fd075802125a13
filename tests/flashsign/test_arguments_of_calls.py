"""What is no tensor or no number: one sentence, from every public function."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import flashsign as fs

Q, K = torch.ones(1, 2, 3, 4), torch.ones(1, 2, 5, 4)
X, W = torch.ones(6, 4), torch.ones(10, 4)
CLASSES = torch.zeros(6, dtype=torch.long)
CALLS = {
    "q must be a tensor; found NoneType": lambda: fs.spherical_attention(None, K, K),
    "k must be a tensor; found ndarray": lambda: fs.spherical_attention(Q, np.ones(3), K),
    "q must be a dense tensor": lambda: fs.spherical_attention(Q.to_sparse(), K, K),
    "multiplicity must be a tensor; found list": lambda: fs.spherical_attention(Q, K, K, [1] * 5),
    "multiplicity must be real numbers": lambda: fs.spherical_attention(Q, K, K, torch.ones(1, 5) * 1j),
    "offsets must be a tensor": lambda: fs.spherical_attention(X, X, X, offsets=[0, 6]),
    "eps must be a finite number, not 'a'": lambda: fs.spherical_attention(Q, K, K, eps="a"),
    "eps must be a finite number, not nan": lambda: fs.spherical_attention(Q, K, K, eps=float("nan")),
    "eps must be at least 0, not -1": lambda: fs.rms_norm(X, torch.ones(4), -1),
    "multiplicity must be a tensor; found NoneType": lambda: fs.edge_weights(Q, K, None),
    "of the same cells and width": lambda: fs.edge_weights(Q, K[..., :3], torch.ones(1, 5)),
    "weight must be a tensor": lambda: fs.linear_cross_entropy(X, None, CLASSES),
    "ignore_index must be a whole number, not 0.5": lambda: fs.linear_cross_entropy(X, W, CLASSES, ignore_index=0.5),
    "x must be a tensor": lambda: fs.mlp("x", W, W),
    "monoid must be a Monoid, as flashsign.SUM, not 'sum'": lambda: fs.monoid_reduce("sum", (X,), (W,)),
    "monoid must be a Monoid, as flashsign.SUM, not None": lambda: fs.fold(None, (X,)),
    "monoid must be a Monoid, as flashsign.SUM, not 5": lambda: fs.check_monoid(5, (X,)),
    "semigroup must be a Monoid": lambda: fs.with_unit(None),
    "classes must be a whole number, not 'a'": lambda: fs.class_cross_entropy("a"),
}


@pytest.mark.parametrize("sentence", CALLS)
def test_what_is_no_tensor_or_no_number_is_one_sentence(sentence):
    with pytest.raises(ValueError, match=sentence.replace(".", r"\.")) as refused:
        CALLS[sentence]()
    assert "\n" not in str(refused.value) and str(refused.value).endswith(".")


def test_tensors_are_refused_by_the_error_that_the_docs_name():
    with pytest.raises(fs.ShapeMismatch):
        fs.spherical_attention(None, K, K)
    assert fs.spherical_attention(Q, K, K, eps=np.float32(0.1)).shape == Q.shape
