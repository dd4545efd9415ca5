#!/usr/bin/env python3
"""Compares the f64 reference with PyTorch in float64.

The cases and the reference's results come from one file:

    cargo run --release --example export_reference_cases -- cases.safetensors
    python3 benches/peers/torch_f64.py cases.safetensors [--device cuda] [--json OUT] [--markdown OUT]

Each case is computed again from q, k, v, d_out and its options: the whole score matrix, masks
written as masked_fill, softmax and logsumexp of PyTorch, gradients by autograd. One row per case
gives the largest absolute error of out, lse, dq, dk and dv; --json and --markdown add it relative
to the largest value of the tensor. Exit status 1 if an absolute error exceeds
1e-11 * max(1, max|s|), s being the visible scores, or if infinities differ; 2 if the file cannot be
read. Needs PyTorch alone.
"""

import argparse
import json
import struct
import sys

import torch

DTYPES = {"F64": torch.float64, "I64": torch.int64, "BOOL": torch.bool}
RESULTS = ("out", "lse", "dq", "dk", "dv")
TOLERANCE = 1e-11


def load(path):
    """{case number: (scalars, {name: tensor})} of a safetensors file."""
    with open(path, "rb") as file:
        data = bytearray(file.read())
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    cases = {key: (json.loads(text), {}) for key, text in header.pop("__metadata__").items()}
    for key, entry in header.items():
        case, name = key.split("/")
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        dtype = DTYPES[entry["dtype"]]
        if begin == end:  # frombuffer refuses to read nothing
            tensor = torch.empty(0, dtype=dtype)
        else:
            tensor = torch.frombuffer(data[begin:end], dtype=dtype)
        cases[case][1][name] = tensor.reshape(entry["shape"])
    return cases


def hidden_pairs(scalars, t, distance):
    """[b, h_q or 1, s_q, s_kv], true where query i may not see key j.

    distance [b, 1, s_q, s_kv] is how far key j lies right of the diagonal of query i.
    """
    hidden = torch.zeros_like(distance, dtype=torch.bool)
    s_q, s_kv = distance.shape[2:]
    if scalars["causal"]:
        hidden = hidden | (distance > 0)
    if scalars["window_left"] is not None:
        hidden = hidden | (distance < -scalars["window_left"])
    if scalars["window_right"] is not None:
        hidden = hidden | (distance > scalars["window_right"])
    if "lengths_q" in t:
        i = torch.arange(s_q, device=distance.device).view(1, 1, -1, 1)
        j = torch.arange(s_kv, device=distance.device).view(1, 1, 1, -1)
        hidden = hidden | (i >= t["lengths_q"].view(-1, 1, 1, 1))
        hidden = hidden | (j >= t["lengths_kv"].view(-1, 1, 1, 1))
    if "documents_q" in t:
        hidden = hidden | (
            t["documents_q"][:, None, :, None] != t["documents_kv"][:, None, None, :]
        )
    if "mask" in t:
        hidden = hidden | t["mask"]
    if "bias" in t:
        hidden = hidden | (t["bias"] == float("-inf"))
    return hidden


def distances(scalars, t):
    """[b, 1, s_q, s_kv]: j - (i + shift), the shift being len_kv - len_q or 0."""
    (b, _, s_q, _), s_kv = t["q"].shape, t["k"].shape[2]
    device = t["q"].device
    shift = torch.zeros(b, dtype=torch.int64, device=device)
    if scalars["alignment"] == "bottom_right":
        len_q = t.get("lengths_q", torch.full_like(shift, s_q))
        len_kv = t.get("lengths_kv", torch.full_like(shift, s_kv))
        shift = len_kv - len_q
    i = torch.arange(s_q, device=device).view(1, 1, -1, 1)
    j = torch.arange(s_kv, device=device).view(1, 1, 1, -1)
    return j - i - shift.view(-1, 1, 1, 1)


def attend(scalars, t):
    """out, lse and the largest visible |score|."""
    group = t["q"].shape[1] // t["k"].shape[1]
    k, v = (t[name].repeat_interleave(group, dim=1) for name in ("k", "v"))
    distance = distances(scalars, t)
    hidden = hidden_pairs(scalars, t, distance)

    x = scalars["scale"] * torch.einsum("bhid,bhjd->bhij", t["q"], k)
    if scalars["softcap"] is not None:
        x = scalars["softcap"] * torch.tanh(x / scalars["softcap"])
    if "alibi" in t:
        x = x - t["alibi"].view(1, -1, 1, 1) * distance.abs()
    if "bias" in t:
        x = x + t["bias"]
    hidden = hidden.expand_as(x)
    largest = x.detach()[~hidden].abs().max().item() if bool((~hidden).any()) else 0.0

    # A row without keys would be softmax of nothing but -inf, which is NaN, as are its gradients:
    # it gets scores of 0, and what comes of them is masked away.
    empty = hidden.all(dim=-1, keepdim=True)
    x = x.masked_fill(hidden, float("-inf")).masked_fill(empty, 0.0)
    p = torch.softmax(x, dim=-1).masked_fill(hidden, 0.0)
    out = torch.einsum("bhij,bhje->bhie", p, v)
    lse = torch.logsumexp(x, dim=-1).masked_fill(empty.squeeze(-1), float("-inf"))
    return out, lse, largest


def recompute(scalars, t):
    """PyTorch's out, lse, dq, dk, dv, and the largest visible |score|."""
    inputs = [t[name].requires_grad_() for name in ("q", "k", "v")]
    out, lse, largest = attend(scalars, t)
    loss = (out * t["d_out"]).sum()
    if "d_lse" in t:
        seen = lse != float("-inf")
        loss = loss + (lse[seen] * t["d_lse"][seen]).sum()
    grads = torch.autograd.grad(loss, inputs)
    results = (out.detach(), lse.detach(), *grads)
    return dict(zip(RESULTS, results)), largest


def error(found, wanted):
    """(max |found - wanted|, the same over max |wanted|); inf where they differ by an infinity."""
    if found.shape != wanted.shape:
        return float("inf"), float("inf")
    infinite = ~(torch.isfinite(found) & torch.isfinite(wanted))
    if bool((found[infinite] != wanted[infinite]).any()):  # NaN differs from itself
        return float("inf"), float("inf")
    found, wanted = found[~infinite], wanted[~infinite]
    if found.numel() == 0:
        return 0.0, 0.0
    absolute = (found - wanted).abs().max().item()
    scale = wanted.abs().max().item()
    return absolute, absolute / scale if scale > 0 else absolute


def compare(number, scalars, tensors, device):
    t = {name: tensor.to(device) for name, tensor in tensors.items()}
    results, largest = recompute(scalars, t)
    errors = {name: error(results[name], t[name]) for name in RESULTS}
    bound = TOLERANCE * max(1.0, largest)
    b, h_q, s_q, d = t["q"].shape
    return {
        "case": number,
        "name": scalars["name"],
        "shape": f"b{b} h{h_q}/{t['k'].shape[1]} s{s_q}x{t['k'].shape[2]} d{d}/{t['v'].shape[3]}",
        "max_abs_score": largest,
        "bound": bound,
        "absolute": {name: pair[0] for name, pair in errors.items()},
        "relative": {name: pair[1] for name, pair in errors.items()},
        "passed": all(pair[0] <= bound for pair in errors.values()),
    }


def table(rows):
    """GitHub-flavoured Markdown; each cell is absolute (relative) error."""
    yield "| case | sizes | max\\|s\\| | bound | " + " | ".join(RESULTS) + " | |"
    yield "|---|---|---|---|" + "---|" * len(RESULTS) + "---|"
    for row in rows:
        cells = [f"{row['absolute'][name]:.1e} ({row['relative'][name]:.1e})" for name in RESULTS]
        verdict = "pass" if row["passed"] else "FAIL"
        head = [f"{row['case']} {row['name']}", row["shape"]]
        head += [f"{row['max_abs_score']:.3g}", f"{row['bound']:.1e}"]
        yield "| " + " | ".join(head + cells + [verdict]) + " |"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", help="written by the example export_reference_cases")
    parser.add_argument("--device", default="cpu", help="a PyTorch device (default: cpu)")
    parser.add_argument("--json", metavar="OUT", help="write every figure to OUT")
    parser.add_argument("--markdown", metavar="OUT", help="write the table to OUT")
    arguments = parser.parse_args()
    try:
        cases = load(arguments.file)
    except (OSError, ValueError, KeyError, RuntimeError, struct.error) as problem:
        print(f"{arguments.file}: not a file of reference cases: {problem!r}", file=sys.stderr)
        return 2

    device = torch.device(arguments.device)
    rows = [compare(number, *cases[number], device) for number in sorted(cases)]
    for row in rows:
        figures = "  ".join(f"{name} {row['absolute'][name]:.1e}" for name in RESULTS)
        verdict = "pass" if row["passed"] else "FAIL"
        print(f"{verdict}  {row['case']}  bound {row['bound']:.1e}  {figures}  {row['name']}")
    failed = sum(not row["passed"] for row in rows)
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    print(f"{len(rows)} cases, {failed} failed: torch {torch.__version__} float64 on {where}")
    if arguments.json:
        report = {"torch": torch.__version__, "device": where, "cases": rows}
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(report, file, indent=1)
    if arguments.markdown:
        with open(arguments.markdown, "w", encoding="utf-8") as file:
            file.write("\n".join(table(rows)) + "\n")
    return 1 if failed or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
