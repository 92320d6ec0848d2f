"""An exact GELU is written out, whatever a device makes of torch's; the other forms stay."""

from __future__ import annotations

import torch
from torch import nn
from transformers.activations import ACT2FN

from trunnion.adapter.activations import make_exact
from trunnion.layers.activation import Gelu


def test_exact_forms_are_written_out_and_others_stay() -> None:
    names = ("gelu", "gelu_python", "gelu_new", "gelu_pytorch_tanh", "quick_gelu", "silu")
    model = nn.ModuleDict({"mlp": nn.ModuleDict({name: ACT2FN[name] for name in names})})
    model["exact"], model["tanh"] = nn.GELU(), nn.GELU(approximate="tanh")
    make_exact(model)
    written = [name for name, module in model.named_modules() if isinstance(module, Gelu)]
    assert sorted(written) == ["exact", "mlp.gelu", "mlp.gelu_python"]
    x = torch.linspace(-8, 8, 401)
    wanted = (x.double() * torch.special.ndtr(x.double())).float()
    torch.testing.assert_close(model["exact"](x), wanted, rtol=1e-6, atol=1e-6)
    assert (model["tanh"](x) - wanted).abs().max() > 1e-4
