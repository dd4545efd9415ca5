#!/usr/bin/env python3
"""Times other attention libraries with the protocol that `flashcube bench` times its own with.

    python3 benches/peers/peers.py --suite attention_forward --json peers.json [--row PATTERN]
    python3 benches/peers/peers.py --list
    flashcube bench --suite attention_forward --json ours.json \\
        --peers benches/peers/peers.py --peers-json peers.json

Alone it runs three rounds of every problem and writes the same JSON as `flashcube bench`. With
--serve it is the child of `flashcube bench --peers`: a line of JSON on stdin asks for one round of
one implementation, a line on stdout answers, so that the two processes take turns on the card.

A round: 100 ms of rest, launches for 25 ms, then launches for 100 ms, each between two device events
with 256 MB zeroed before the first of them so that the L2 cache holds none of the inputs (the method
of triton's do_bench); its figure is the median. Launches are replays of a CUDA graph, so that no
Python runs between the events. A row's figure is the median of its rounds.

Peers: PyTorch's scaled_dot_product_attention with cuDNN and with FlashAttention-2, FlashAttention-3
(the wheel fa3-fwd) where it can be imported, and cuBLAS on 8192^3 as the ceiling of the same run.
Results are checked against float64 on sampled rows after the timing. A figure more than 3 % below
the one in problems.py, taken on the same kind of card, is marked void.

Exit status 1 if a row failed, 2 if PyTorch or its device is not there.
"""

import argparse
import contextlib
import json
import os
import sys
import time

import linear
from problems import EXPECTED_CARD, EXPECTED_MATMUL, decode, expected, problem, suite

ROUNDS = 3
SETTLE, WARM_UP, MEASURED = 100e-3, 25e-3, 100e-3
SAMPLED = 9

SHORTFALL = 0.03
EPSILON = {"bf16": 2.0**-8, "f16": 2.0**-11, "f32": 2.0**-20}


class Refused(Exception):
    """A peer does not take the problem."""


# --- Implementations ------------------------------------------------------------------------------


class Sdpa:
    """scaled_dot_product_attention with one backend."""

    layout = "bhsd"

    def __init__(self, torch, backend, version):
        self.torch, self.backend, self.version = torch, backend, version

    @contextlib.contextmanager
    def context(self):
        from torch.nn.attention import sdpa_kernel

        with self.torch.no_grad(), sdpa_kernel([self.backend]):
            yield

    def prepare(self, problem, q, k, v):
        refuse_caches(problem)
        if problem["packed"] or problem["lengths"] or problem["window_left"] is not None:
            raise Refused("no such problem in scaled_dot_product_attention without a mask tensor")
        if problem["causal"] and problem["s_q"] != problem["s_kv"]:
            raise Refused("its causal mask is aligned top-left")
        attend = self.torch.nn.functional.scaled_dot_product_attention
        grouped = problem["h_q"] != problem["h_kv"]
        return lambda: attend(q, k, v, is_causal=problem["causal"], enable_gqa=grouped)


class FlashAttention3:
    """The wheel's functions on [b, s, h, d], or [s, h, d] packed."""

    layout = "bshd"

    def __init__(self, torch, module, version):
        self.torch, self.module, self.version = torch, module, version

    def context(self):
        return self.torch.no_grad()

    def prepare(self, problem, q, k, v):
        refuse_caches(problem)
        if problem["dtype"] != "bf16":
            raise Refused("the wheel has bf16 only")
        if problem["lengths"] or problem["window_left"] is not None:
            raise Refused("the wheel has no window and no lengths")
        causal, packed = problem["causal"], problem["packed"]
        if problem["cache"] and hasattr(self.module, "flash_attn_with_kvcache"):
            # It splits the keys; 0 lets it choose the number.
            attend = self.module.flash_attn_with_kvcache
            return lambda: first(attend(q, k, v, num_splits=0))
        if not packed:
            return lambda: first(self.module.flash_attn_func(q, k, v, causal=causal))
        ends = [sum(packed[:i]) for i in range(len(packed) + 1)]
        ends = self.torch.tensor(ends, dtype=self.torch.int32, device=q.device)
        q, k, v = (x.squeeze(0) for x in (q, k, v))
        attend = self.module.flash_attn_varlen_func
        longest = max(packed)
        return lambda: first(attend(q, k, v, ends, ends, longest, longest, causal=causal))[None]


def refuse_caches(problem):
    """Pages, codes and graphs of ours are compared with ours in one piece and without."""
    if problem["cache"] and any(problem["cache"].values()):
        raise Refused("no such cache")


def first(result):
    """out, where a function returns (out, lse) too."""
    return result[0] if isinstance(result, tuple) else result


def implementations(torch, device):
    from torch.nn.attention import SDPBackend

    if device != "cuda":
        return {"math": Sdpa(torch, SDPBackend.MATH, f"torch {torch.__version__}")}
    found = {
        "cudnn": Sdpa(torch, SDPBackend.CUDNN_ATTENTION, f"cudnn {torch.backends.cudnn.version()}"),
        "fa2": Sdpa(torch, SDPBackend.FLASH_ATTENTION, f"torch {torch.__version__}"),
    }
    try:
        import fa3_fwd_interface
        from importlib.metadata import version

        found["fa3"] = FlashAttention3(torch, fa3_fwd_interface, f"fa3-fwd {version('fa3-fwd')}")
    except Exception as error:  # absent, or built for another torch
        print(f"no FlashAttention-3: {error!r}"[:200], file=sys.stderr)
    return found


# --- Measuring ------------------------------------------------------------------------------------


class Peers:
    """Tensors of one problem at a time, and what has been measured."""

    def __init__(self, seed, device, marlin=None):
        import torch

        self.torch, self.seed, self.device = torch, seed, device
        if device == "cuda" and not torch.cuda.is_available():
            raise RuntimeError("PyTorch sees no CUDA device")
        self.card = torch.cuda.get_device_name() if device == "cuda" else "cpu"
        self.implementations = implementations(torch, device)
        self.linear = linear.implementations(torch, device, marlin)
        self.linear_weights = None, None
        # What triton zeroes between launches.
        self.flush = torch.empty(256 << 20, dtype=torch.int8, device=device)
        self.current, self.tensors, self.launches = None, {}, {}
        self.rows = {}
        self.matmuls = {}
        self.matmul()

    def dtype(self, name):
        return {"bf16": self.torch.bfloat16, "f16": self.torch.float16, "f32": self.torch.float32}[name]

    def free(self):
        self.current, self.tensors, self.launches = None, {}, {}
        if self.device == "cuda":
            self.torch.cuda.empty_cache()

    def draw(self, problem, layout):
        """q, k, v of N(0, 1) in a layout; both layouts hold the same numbers in memory order."""
        if self.current != problem["name"]:
            self.free()
            self.current = problem["name"]
        if layout not in self.tensors:
            generator = self.torch.Generator(self.device).manual_seed(self.seed)

            def normal(h, s):
                shape = (h, s) if layout == "bhsd" else (s, h)
                shape = (problem["b"], *shape, problem["d"])
                drawn = self.torch.randn(shape, generator=generator, device=self.device)
                return drawn.to(self.dtype(problem["dtype"]))

            q = normal(problem["h_q"], problem["s_q"])
            k, v = (normal(problem["h_kv"], problem["s_kv"]) for _ in range(2))
            self.tensors[layout] = q, k, v
        return self.tensors[layout]

    def measure(self, problem, name):
        """One round; raises Refused where the peer does not take the problem."""
        if problem.get("kind") == "linear":
            return self.measure_linear(problem, name)
        peer = self.implementations[name]
        tensors = self.draw(problem, peer.layout)
        with peer.context():
            if name not in self.launches:
                launch = peer.prepare(problem, *tensors)
                try:
                    launch()
                    self.synchronize()
                except RuntimeError as error:
                    raise Refused(str(error).strip().splitlines()[0][:200]) from error
                self.launches[name] = self.captured(launch)
            times = self.round(self.launches[name])
        row = self.rows.setdefault((problem["name"], name), {"problem": problem, "rounds": []})
        row["rounds"].append(times)
        return times[0]

    def measure_linear(self, problem, name):
        """One round of passes over copies of the weights; the time of one product."""
        torch, peer = self.torch, self.linear[name]
        dtype = self.dtype(problem["dtype"])
        key = name, problem["n"], problem["k"], problem["dtype"], problem["zeros"]
        kept, weights = self.linear_weights
        if kept != key:
            self.free()
            self.linear_weights = None, None
            try:
                weights = peer.weights(problem, dtype, self.device)
            except ValueError as error:
                raise Refused(str(error)) from error
            self.linear_weights = key, weights
        if (problem["name"], name) not in self.launches:
            x = torch.randn(problem["m"], problem["k"], device=self.device).to(dtype)
            out = torch.empty(problem["m"], problem["n"], dtype=dtype, device=self.device)
            launches = peer.launches(x, weights, out)
            launches[0]()
            self.synchronize()

            def rotate():
                for launch in launches:
                    launch()

            self.launches[problem["name"], name] = self.captured(rotate), len(launches), x, out
        rotate, copies, _, _ = self.launches[problem["name"], name]
        median, fastest, number = self.round(rotate, flush=False)
        times = median / copies, fastest / copies, number * copies
        row = self.rows.setdefault((problem["name"], name), {"problem": problem, "rounds": []})
        row["rounds"].append(times)
        return times[0]

    def finish_linear(self, problem):
        epsilon = EPSILON[problem["dtype"]]
        for (about, name), (rotate, _, x, out) in self.launches.items():
            row = self.rows.get((about, name))
            if row is not None and "worst" not in row:
                rotate()
                weights = self.linear_weights[1]
                if self.linear_weights[0][0] != name:
                    weights = self.linear[name].weights(problem, x.dtype, self.device)
                    out.zero_()
                    self.linear[name].launches(x, weights, out)[0]()
                row["worst"] = linear.check(out, self.linear[name].exact(x, weights), epsilon)
        self.launches = {}

    def captured(self, launch):
        """The launch as a CUDA graph: some peers' Python takes longer than their kernel, and the
        card would wait for it between the events. The launch itself where it cannot be captured."""
        if self.device != "cuda":
            return launch
        graph = self.torch.cuda.CUDAGraph()
        try:
            with self.torch.cuda.graph(graph):
                out = launch()
        except RuntimeError as error:
            print(f"not captured: {error}"[:200], file=sys.stderr)
            return launch

        def replay():
            graph.replay()
            return out

        return replay

    def synchronize(self):
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def round(self, launch, flush=True):
        """(median, fastest, number) of the seconds of a round's launches."""
        time.sleep(SETTLE)
        launch()
        each = sum(self.windows(launch, 3, flush)) / 3
        count = lambda seconds: int(min(max(seconds / each, 3), 1000))
        for _ in range(count(WARM_UP)):
            launch()
        times = sorted(self.windows(launch, count(MEASURED), flush))
        return times[len(times) // 2], times[0], len(times)

    def windows(self, launch, n, flush=True):
        """Seconds of n launches by the device's clock. Nothing waits before the last one."""
        if self.device != "cuda":
            return [timed(launch) for _ in range(n)]
        Event = self.torch.cuda.Event
        events = [(Event(enable_timing=True), Event(enable_timing=True)) for _ in range(n)]
        for start, end in events:
            if flush:
                self.flush.zero_()
            start.record()
            launch()
            end.record()
        self.torch.cuda.synchronize()
        return [start.elapsed_time(end) * 1e-3 for start, end in events]

    def matmul(self):
        """A round of cuBLAS on 8192^3 in each dtype: what the card can do now."""
        if self.device != "cuda":
            return
        for name in EXPECTED_MATMUL:
            a, b = (self.torch.randn(8192, 8192, device="cuda").to(self.dtype(name)) for _ in "ab")
            out = self.torch.empty_like(a)
            times = self.round(lambda: self.torch.matmul(a, b, out=out))
            self.matmuls.setdefault(name, []).append(times)

    def finish(self, problem):
        """Checks sampled rows of what was measured, then frees the problem."""
        if problem.get("kind") == "linear":
            return self.finish_linear(problem)
        for name, launch in self.launches.items():
            peer = self.implementations[name]
            with peer.context():
                out = launch()
                row = self.rows[problem["name"], name]
                row["worst"] = self.check(problem, self.tensors[peer.layout], out, peer.layout)
        self.free()

    def check(self, problem, tensors, out, layout):
        """|out - exact| / |exact| over the sampled rows, as a share of twice the dtype's epsilon."""
        q, k, v, out = (x if layout == "bhsd" else x.transpose(1, 2) for x in (*tensors, out))
        b, h, s, d = q.shape
        rows = b * h * s
        error, size = 0.0, 0.0
        for at in sorted({i * (rows - 1) // (SAMPLED - 1) for i in range(SAMPLED)}):
            n, head, i = at // (h * s), at // s % h, at % s
            first, end = 0, problem["s_kv"]  # one query sees them all
            for length in problem["packed"] or []:
                end = first + length
                if i < end:
                    break
                first = end
            end = min(end, i + 1) if problem["causal"] else end
            group = head // (h // problem["h_kv"])
            keys, values = (x[n, group, first:end].double() for x in (k, v))
            weights = (keys @ q[n, head, i].double() * d**-0.5).softmax(0)
            exact = weights @ values
            error += (out[n, head, i].double() - exact).square().sum().item()
            size += exact.square().sum().item()
        share = (error / size) ** 0.5 / (2 * EPSILON[problem["dtype"]])
        return share if share == share else 1e308

    def attend(self, request):
        """Attention over files of f32 [b, h, s, d]; out goes to a file as well."""
        torch, shape = self.torch, request["shape"]
        b, h, s, d = shape
        sizes = problem(request["dtype"], b, (h, h), s, d, False)
        peer = self.implementations[request["implementation"]]
        bhsd = lambda x: x if peer.layout == "bhsd" else x.transpose(1, 2).contiguous()
        elements = b * h * s * d
        tensors = []
        for path in request["inputs"]:
            x = torch.from_file(path, size=elements, dtype=torch.float32).reshape(shape)
            tensors.append(bhsd(x.to(self.device, self.dtype(request["dtype"]))))
        with peer.context():
            out = bhsd(peer.prepare(sizes, *tensors)()).float().cpu()
        torch.from_file(request["output"], shared=True, size=elements).copy_(out.flatten())

    # --- Reporting ---

    def report(self):
        self.matmul()
        rows = [self.row(name, row) for (_, name), row in self.rows.items()]
        rows += [self.matmul_row(dtype, rounds) for dtype, rounds in self.matmuls.items()]
        known = [*self.implementations.values(), *self.linear.values()]
        versions = sorted({peer.version for peer in known})
        return {
            "version": ", ".join(versions),
            "backend": "peers",
            "device": self.card,
            "seed": self.seed,
            "rows": rows,
        }

    def row(self, implementation, row):
        problem = row["problem"]
        of_linear = problem.get("kind") == "linear"
        judged = self.card == EXPECTED_CARD and not of_linear
        before = expected(problem, implementation) if judged else None
        worst = row.get("worst", 1e308)
        peer = (self.linear if of_linear else self.implementations)[implementation]
        cell = {"layout": peer.layout, **{key: problem[key] for key in ("dtype", "mask")}}
        cell["problem"] = problem["name"]
        found = figures(row["rounds"], problem["flops"], before, cell, before is not None)
        return {
            **found,
            "name": f"{problem['name']}/{implementation}",
            "implementation": implementation,
            "blueprint": peer.version,
            "clock": "device" if self.device == "cuda" else "system",
            "bytes": problem["bytes"],
            "ceiling": "matmul",
            "fraction_of_ceiling": self.fraction(problem["dtype"], cell["tflop_per_s"]),
            "worst_share_of_bound": worst,
            "failure": None if worst <= 1 else f"wrong result: {worst:.2f} times the bound",
        }

    def matmul_row(self, dtype, rounds):
        name = f"matmul/{dtype}/8192x8192x8192"
        cell = {"problem": name, "dtype": dtype, "mask": "none", "layout": "bhsd"}
        before = EXPECTED_MATMUL[dtype] if self.card == EXPECTED_CARD else None
        # The ceiling stands beside; it is no peer and voids nothing.
        return {
            **figures(rounds, 2 * 8192**3, before, cell, False),
            "name": f"{name}/cublas",
            "implementation": "cublas",
            "blueprint": f"torch {self.torch.__version__}",
            "clock": "device",
            "bytes": 3 * 8192**2 * 2,
            "ceiling": "matmul",
            "fraction_of_ceiling": 1.0,
            "worst_share_of_bound": 0.0,
            "failure": None,
        }

    def fraction(self, dtype, tflops):
        rounds = self.matmuls.get(dtype)
        return tflops * 1e12 * median([x[0] for x in rounds]) / (2 * 8192**3) if rounds else 0.0


def figures(rounds, flops, before, cell, judged):
    """The times of a row, and what follows from them."""
    seconds = median([times[0] for times in rounds])
    tflops = flops / seconds / 1e12
    cell["round_seconds"] = [times[0] for times in rounds]
    cell["tflop_per_s"] = tflops
    cell["expected_tflop_per_s"] = before
    low = judged and tflops < (1 - SHORTFALL) * before
    cell["void"] = f"{tflops:.0f} TFLOP/s, {before} expected on an {EXPECTED_CARD}" if low else None
    return {
        "median_seconds": seconds,
        "fastest_seconds": min(times[1] for times in rounds),
        "repeats": sum(times[2] for times in rounds),
        "flops": flops,
        "cell": cell,
    }


def median(values):
    return sorted(values)[len(values) // 2]


def timed(launch):
    started = time.perf_counter()
    launch()
    return time.perf_counter() - started


# --- The two ways to run --------------------------------------------------------------------------


def answer(peers, request):
    op = request["op"]
    try:
        if op == "measure":
            return {"median_seconds": peers.measure(request["problem"], request["implementation"])}
        if op == "finish":
            return peers.finish(request["problem"])
        if op == "attend":
            peers.attend(request)
            return {}
        if op == "report":
            return peers.report()
    except Refused as refused:
        return {"refused": str(refused)}
    raise ValueError(f"unknown op {op!r}")


def serve(device, marlin):
    """Requests on stdin, answers on what was stdout; prints of libraries go to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    peers = None
    for line in sys.stdin:
        try:
            request = json.loads(line)
            if request["op"] == "hello":
                peers = Peers(request["seed"], device, marlin)
                found = [
                    {"name": name, "layout": peer.layout}
                    for name, peer in [*peers.implementations.items(), *peers.linear.items()]
                ]
                reply = {"implementations": found}
            else:
                reply = answer(peers, request)
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"[:2000]}
        print(json.dumps(reply), file=answers, flush=True)


def problems(arguments):
    return decode() if arguments.suite == "decode" else suite(arguments.seed)


def alone(arguments):
    try:
        peers = Peers(arguments.seed, arguments.device)
    except (ImportError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for problem in problems(arguments):
        if arguments.row and not any(part in problem["name"] for part in arguments.row):
            continue
        refused = {}
        for _ in range(ROUNDS):
            for name in peers.implementations:
                if name not in refused:
                    try:
                        peers.measure(problem, name)
                    except Refused as reason:
                        refused[name] = reason
        peers.finish(problem)
        print(problem["name"], {name: str(reason) for name, reason in refused.items()} or "")
    report = peers.report()
    for row in report["rows"]:
        cell = row["cell"]
        note = row["failure"] or cell["void"] or ""
        print(f"{row['name']:64s} {1e6 * row['median_seconds']:10.1f} us {cell['tflop_per_s']:7.1f} TFLOP/s {note}")
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(report, file, indent=2)
    return int(any(row["failure"] for row in report["rows"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", choices=["attention_forward", "decode"], default="attention_forward")
    parser.add_argument("--json", metavar="FILE", help="write JSON to this file")
    parser.add_argument("--row", action="append", metavar="PATTERN", help="only problems whose name contains this (repeatable)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the inputs and of the drawn problems")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda", help="cpu times PyTorch's own kernel")
    parser.add_argument("--marlin", metavar="LIB", help="Marlin's shared library, for the suite w4a16 of flashcube bench")
    parser.add_argument("--list", action="store_true", help="print the problems as JSON, and run nothing")
    parser.add_argument("--serve", action="store_true", help="answer requests on stdin")
    arguments = parser.parse_args()
    if arguments.list:
        print(json.dumps(list(problems(arguments)), indent=2))
    elif arguments.serve:
        serve(arguments.device, arguments.marlin)
    else:
        sys.exit(alone(arguments))


if __name__ == "__main__":
    main()
