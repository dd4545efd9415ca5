"""Writes minilm_expected.json: the sentence embeddings of three sentences in float64.

An independent reading of the model: numpy, the scipy-free erf of the math module, and the
`tokenizers` and `safetensors` packages. Run with the model's folder as the only argument:

    python3 make_expected.py ~/.local/share/flashcube/minilm > minilm_expected.json
"""

import json
import math
import sys

import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer

SENTENCES = [
    "A cat sleeps on the warm windowsill.",
    "Hi!",
    "The kitten dozed off in the sun, although the neighbour's dog was barking at the postman.",
]
DIMS_KEPT = 8

erf = np.vectorize(math.erf)


def norm(x, weight, bias, eps):
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps) * weight + bias


def embed(ids, w, config):
    """One sentence without padding: ids [s] -> embedding [hidden]."""
    heads, eps = config["num_attention_heads"], config["layer_norm_eps"]

    def linear(x, name):
        return x @ w[name + ".weight"].T + w[name + ".bias"]

    def layer_norm(x, name):
        return norm(x, w[name + ".weight"], w[name + ".bias"], eps)

    x = w["embeddings.word_embeddings.weight"][ids]
    x = x + w["embeddings.position_embeddings.weight"][: len(ids)]
    x = x + w["embeddings.token_type_embeddings.weight"][0]
    x = layer_norm(x, "embeddings.LayerNorm")
    for i in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{i}."
        q, k, v = (
            linear(x, at + f"attention.self.{part}").reshape(len(ids), heads, -1).swapaxes(0, 1)
            for part in ("query", "key", "value")
        )
        scores = q @ k.swapaxes(1, 2) / math.sqrt(q.shape[-1])
        p = np.exp(scores - scores.max(axis=-1, keepdims=True))
        p /= p.sum(axis=-1, keepdims=True)
        context = (p @ v).swapaxes(0, 1).reshape(len(ids), -1)
        x = layer_norm(
            linear(context, at + "attention.output.dense") + x, at + "attention.output.LayerNorm"
        )
        wide = linear(x, at + "intermediate.dense")
        wide = wide * 0.5 * (1.0 + erf(wide / math.sqrt(2.0)))
        x = layer_norm(linear(wide, at + "output.dense") + x, at + "output.LayerNorm")
    mean = x.mean(axis=0)
    return mean / np.linalg.norm(mean)


def main():
    folder = sys.argv[1]
    with open(f"{folder}/config.json") as file:
        config = json.load(file)
    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
    tokenizer.no_padding()
    tokenizer.no_truncation()
    weights = {
        name: value.astype(np.float64)
        for name, value in load_file(f"{folder}/model.safetensors").items()
        if value.dtype == np.float32
    }
    ids = [tokenizer.encode(sentence).ids for sentence in SENTENCES]
    embeddings = np.stack([embed(row, weights, config) for row in ids])
    expected = {
        "sentences": SENTENCES,
        "ids": ids,
        "first_dims": embeddings[:, :DIMS_KEPT].tolist(),
        "cosines": (embeddings @ embeddings.T).tolist(),
    }
    json.dump(expected, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
