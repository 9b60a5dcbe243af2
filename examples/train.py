"""Train a model on the bytes of a text with the ladder's switches.

An example is `python -m examples.train --model encoder`."""

import argparse
import time
from pathlib import Path

import torch
from torch import nn

from lib import config, fast, model, precision
from lib.instruments import allocator, device, processor


class CausalLayer(nn.TransformerEncoderLayer):
    # PyTorch compiles no forward pass of its own classes, only those of others
    def forward(self, x_BTC, **_):
        mask = nn.Transformer.generate_square_subsequent_mask(x_BTC.shape[1], x_BTC.device)
        return super().forward(x_BTC, mask, is_causal=True)


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", choices=["ours", "encoder", "llama"], default="ours")
for name, default in {"text": "README.md", "precision": "auto", "steps": 100, "batch": 8, "context": 128}.items():
    parser.add_argument(f"--{name}", type=type(default), default=default)
parser.add_argument("--masters", action="store_true", help="keep the matrices in bf16, and fp32 masters of them")
args = parser.parse_args()
place = device.choose("auto")
if args.precision == "auto":
    is_emulated = device.on(place).lacks("bf16") or (place == "cpu" and processor.emulates_bf16())
    args.precision = "fp32" if is_emulated else "bf16"
if args.model == "llama":
    from transformers import LlamaConfig, LlamaForCausalLM  # `make peers` installs it

    network = LlamaForCausalLM(LlamaConfig(vocab_size=256, hidden_size=256, intermediate_size=512, num_hidden_layers=4))
elif args.model == "encoder":
    layer = CausalLayer(256, 4, 1024, dropout=0.0, batch_first=True, norm_first=True)
    layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    network = nn.Sequential(nn.Embedding(256, 256), layers, nn.Linear(256, 256))
else:
    network = model.TransformerLM(config.Config(256, args.context, 256, 1024, 4, 4), "sdpa")
text = torch.tensor(list(Path(args.text).read_bytes()))
# the switches: keep freed pages, narrow products, compiled layers and loss, fused AdamW or bf16 weights with masters
allocator.use("keeps")
autocast = precision.activate(args.precision, place)
fast.compile_layers(network.to(place))
mean_loss = torch.compile(model.loss)
optimizer = torch.optim.AdamW(network.parameters(), fused=True)
if args.masters and args.precision == "bf16":
    optimizer = fast.MastersAdamW(network.parameters())
    optimizer.round_matrices(network)
for step in range(1, args.steps + 1):
    began_s = time.perf_counter()
    starts = torch.randint(len(text) - args.context, (args.batch,)).tolist()
    tokens_BT = torch.stack([text[start : start + args.context + 1] for start in starts]).to(place)
    with autocast:
        outputs = network(tokens_BT[:, :-1])
        loss = mean_loss(getattr(outputs, "logits", outputs), tokens_BT[:, 1:])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    rate = args.batch * args.context / (time.perf_counter() - began_s)
    print(f"step {step}: loss {loss.item():.3f}, {rate:,.0f} tokens/s")
