"""Writes smollm2_expected.json: scores of the word after each of some tokens, in float64.

An independent reading of the model: numpy and the `gguf` package (which also dequantizes), the
rotation of GGUF's interleaved rows done in place rather than by reordering them. Run with the
file as the only argument:

    python3 make_smollm2_expected.py ~/.local/share/flashcube/smollm2/model.gguf > smollm2_expected.json
"""

import json
import sys

import numpy as np
from gguf import GGUFReader, dequantize
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

TEXT = "The capital of France is Paris. In 1789, the people of the city"
KEPT = 6


def rms(x, weight, eps):
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight


def rotate(x, theta):
    """x [h, s, d]: pairs (2i, 2i + 1) turn, as GGUF lays the rows out."""
    s, d = x.shape[1:]
    angles = np.arange(s)[:, None] * theta ** (-np.arange(0, d, 2) / d)[None, :]
    cos, sin = np.cos(angles), np.sin(angles)
    y = np.empty_like(x)
    y[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
    y[..., 1::2] = x[..., 1::2] * cos + x[..., 0::2] * sin
    return y


def main(path):
    reader = GGUFReader(path)
    field = lambda key: reader.fields[key].contents()
    weights = {t.name: dequantize(t.data, t.tensor_type).astype(np.float64) for t in reader.tensors}
    tokens = field("tokenizer.ggml.tokens")
    merges = [tuple(m.split(" ")) for m in field("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    ids = tokenizer.encode(TEXT).ids
    assert tokenizer.decode(ids) == TEXT
    heads, shared = field("llama.attention.head_count"), field("llama.attention.head_count_kv")
    eps, theta = field("llama.attention.layer_norm_rms_epsilon"), field("llama.rope.freq_base")
    s = len(ids)
    x = weights["token_embd.weight"][ids]
    split = lambda y, h: y.reshape(s, h, -1).swapaxes(0, 1)
    hidden = np.triu(np.full((s, s), -np.inf), 1)
    for i in range(field("llama.block_count")):
        w = lambda part: weights[f"blk.{i}.{part}.weight"]
        n = rms(x, w("attn_norm"), eps)
        q = rotate(split(n @ w("attn_q").T, heads), theta)
        k = rotate(split(n @ w("attn_k").T, shared), theta)
        v = split(n @ w("attn_v").T, shared)
        k, v = (np.repeat(part, heads // shared, axis=0) for part in (k, v))
        scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1]) + hidden
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        x = x + (p @ v).swapaxes(0, 1).reshape(s, -1) @ w("attn_output").T
        n = rms(x, w("ffn_norm"), eps)
        gate = n @ w("ffn_gate").T
        x = x + (gate / (1 + np.exp(-gate)) * (n @ w("ffn_up").T)) @ w("ffn_down").T
    logits = rms(x, weights["output_norm.weight"], eps) @ weights["token_embd.weight"].T
    top = np.argsort(-logits, axis=-1)[:, :KEPT]
    log_p = logits - logits.max(-1, keepdims=True)
    log_p -= np.log(np.exp(log_p).sum(-1, keepdims=True))
    nats = [-float(log_p[i, ids[i + 1]]) for i in range(s - 1)]
    json.dump(
        {
            "text": TEXT,
            "ids": ids,
            "top": top.tolist(),
            "logits": [[float(logits[i, j]) for j in top[i]] for i in range(s)],
            "nats": nats,
        },
        sys.stdout,
    )


main(sys.argv[1])
