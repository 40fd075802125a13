"""One member of a model by itself, so that reading it costs a share of reading all.

Letters: P members.
"""

from __future__ import annotations

import copy
from typing import TypeVar

from torch import nn

from grn.model.regulation import Blocks, Model

AnyModule = TypeVar("AnyModule", bound=nn.Module)
OF_ALL = ("own", "mixed")  # buffers of a block that members share; the others are [P, ..]


def one_member(model: Model, member: int) -> Model:
    """Return a model whose signed blocks are those of one member, P = 1: views of its tensors.

    What is not a signed block is that of the model, and still of all members.
    """
    one = copy.copy(model)
    one.config = model.config.model_copy(update={"members": 1})
    blocks = Blocks([_part(block, member) for block in model.blocks])
    one._modules = {**model._modules, "blocks": blocks.train(model.blocks.training)}
    return one


def _part(module: AnyModule, member: int) -> AnyModule:
    one = copy.copy(module)
    own = slice(member, member + 1)
    one._parameters = {
        name: None if each is None else nn.Parameter(each.data[own], requires_grad=False)
        for name, each in module._parameters.items()
    }
    one._buffers = {
        name: each if each is None or name in OF_ALL else each[own]
        for name, each in module._buffers.items()
    }
    one._modules = {
        name: None if each is None else _part(each, member)
        for name, each in module._modules.items()
    }
    return one
