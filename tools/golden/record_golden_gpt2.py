#!/usr/bin/env python3
"""Records a small random GPT-2 as transformers saves it (the real one's names and shapes), with its results for
two texts. It is for tests/golden/test_golden_gpt2.c. tests/golden/gpt2.safetensors has the model's own tensors,
`x` and `logits`.

    python3 tools/golden/record_golden_gpt2.py      (PyTorch and transformers)
"""
import os

import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel

OUT = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "tests/golden")


def main():
    torch.manual_seed(1)
    config = GPT2Config(vocab_size=48, n_positions=16, n_embd=16, n_layer=2, n_head=2,
                        bos_token_id=None, eos_token_id=None)
    model = GPT2LMHeadModel(config).eval()
    for p in model.parameters():  # initial biases are 0, and norms 1: so that all of them count
        p.data += 0.1 * torch.randn_like(p)
    folder = os.path.join(OUT, "gpt2.tmp")
    model.save_pretrained(folder)
    tensors = load_file(os.path.join(folder, "model.safetensors"))
    for name in os.listdir(folder):
        os.remove(os.path.join(folder, name))
    os.rmdir(folder)
    x = torch.randint(0, 48, (2, 12))
    with torch.no_grad():
        tensors["logits"] = model(x).logits.float().contiguous()
    tensors["x"] = x.int()
    save_file(tensors, os.path.join(OUT, "gpt2.safetensors"))


if __name__ == "__main__":
    main()
