"""Shapes of small models, and the model and the batch of one."""

import torch

from lib import model
from lib.cost.flops import Shape

SHAPES = {
    "narrow": Shape(d_model=64, d_ff=224, num_layers=2, num_heads=4, vocab_size=96, batch_size=2, context_length=96),
    "wide": Shape(d_model=64, d_ff=224, num_layers=2, num_heads=4, vocab_size=4000, batch_size=4, context_length=96),
    "deep": Shape(d_model=32, d_ff=96, num_layers=12, num_heads=2, vocab_size=50, batch_size=1, context_length=32),
    "long": Shape(d_model=32, d_ff=64, num_layers=2, num_heads=2, vocab_size=64, batch_size=1, context_length=520),
    "few tokens": Shape(
        d_model=128, d_ff=512, num_layers=2, num_heads=2, vocab_size=200, batch_size=2, context_length=8
    ),
}


def build(shape, attend="naive"):
    tokens = torch.randint(shape.vocab_size, (shape.batch_size, shape.context_length + 1))
    return model.TransformerLM(shape, attend), tokens[:, :-1], tokens[:, 1:]
