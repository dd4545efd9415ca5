"""The problems of the suites attention_forward and decode, and what peers reached on them before.

The list is the one of crates/cli/src/bench/attention/problem.rs; a test compares what
`flashcube bench --list` and `python3 benches/peers/peers.py --list` print.
"""

# (b, h, s, d)
SHAPES = [
    (16, 16, 1024, 128),
    (8, 16, 2048, 128),
    (4, 16, 4096, 128),
    (2, 16, 8192, 128),
    (1, 16, 16384, 128),
    (1, 32, 16384, 64),
    (1, 8, 16384, 256),
]
MIXED = [128, 256, 384, 512, 777, 1024, 1025, 1536, 2048, 2500, 3000, 4096, 5000, 6000, 7000, 8192]
DRAWN = 10
DRAWN_ROWS = 1 << 18

# TFLOP/s in bf16 of (no mask, causal), the medians of triton's do_bench, torch 2.11, cuDNN 9.19.
EXPECTED_CARD = "NVIDIA H200"
EXPECTED = {
    "b16_h16_s1024_d128": {"cudnn": (558, 415), "fa2": (322, 246), "fa3": (586, 458)},
    "b8_h16_s2048_d128": {"cudnn": (591, 480), "fa2": (339, 282), "fa3": (594, 542)},
    "b4_h16_s4096_d128": {"cudnn": (603, 521), "fa2": (341, 304), "fa3": (625, 584)},
    "b2_h16_s8192_d128": {"cudnn": (604, 552), "fa2": (342, 316), "fa3": (659, 606)},
    "b1_h16_s16384_d128": {"cudnn": (618, 570), "fa2": (349, 322), "fa3": (670, 625)},
    "b1_h32_s16384_d64": {"cudnn": (460, 440), "fa2": (308, 297), "fa3": (527, 490)},
    "b1_h8_s16384_d256": {"cudnn": (671, 607), "fa2": (325, 293), "fa3": (712, 674)},
    "varlen16_h16_d128": {"fa3": (639, 586)},
}
# GB/s of K and V of one query for each of 32 heads on 8.
EXPECTED_DECODE = {
    "b1_h32on8_q1xkv131072_d128": {"cudnn": 3866, "fa2": 3430, "fa3": 3009},
    "b16_h32on8_q1xkv8192_d128": {"cudnn": 3969, "fa2": 3781, "fa3": 3054},
    "b64_h32on8_q1xkv4096_d128": {"cudnn": 4199, "fa2": 2518, "fa3": 3936},
}
EXPECTED_MATMUL = {"bf16": 687, "f16": 651}


def mix(seed, index):
    """SplitMix64 (Steele, Lea and Flood, 2014) at a position of a stream."""
    mask = (1 << 64) - 1
    z = (seed * 0xD1342543DE82EF95 + (index + 1) * 0x9E3779B97F4A7C15) & mask
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return z ^ (z >> 31)


def problem(dtype, b, heads, s, d, causal, window_left=None, packed=None, lengths=False):
    h_q, h_kv = heads
    named = f"h{h_q}" if h_q == h_kv else f"h{h_q}on{h_kv}"
    sizes = f"varlen{len(packed)}_{named}" if packed else f"b{b}_{named}_s{s}"
    name = f"attend_forward/{dtype}/{sizes}_d{d}" + "/causal" * causal
    scores = sum(x * x for x in packed) if packed else b * s * s
    scores = scores // 2 if causal else scores
    if window_left is not None:
        name += f"/window{window_left}"
        scores = b * sum(min(i + 1, window_left + 1) for i in range(s))
    mask = "causal" if causal else "none"
    if window_left is not None:
        mask = "window"
    if packed:
        mask = "varlen causal" if causal else "varlen"
    size = 4 if dtype == "f32" else 2
    return {
        "name": name + "/lengths" * lengths,
        "dtype": dtype,
        "b": b, "h_q": h_q, "h_kv": h_kv, "s_q": s, "s_kv": s, "d": d,
        "causal": causal, "window_left": window_left, "packed": packed, "lengths": lengths, "cache": None,
        "mask": mask,
        "bytes": 2 * b * (h_q + h_kv) * s * d * size + 4 * b * h_q * s,
        "flops": 4 * h_q * scores * d,
    }


def drawn(dtype, seed, i):
    def pick(field, choices):
        return mix(seed, 16 * i + field) % choices

    d = [64, 96, 128, 192, 256][pick(0, 5)]
    h_kv = 1 << pick(1, 4)
    h_q = h_kv << pick(2, 4)
    s = 512 + pick(3, 7680)
    return problem(dtype, max(DRAWN_ROWS // (h_q * s), 1), (h_q, h_kv), s, d, pick(4, 2) == 1)


def suite(seed):
    for dtype in ("bf16", "f16"):
        for b, h, s, d in SHAPES:
            for causal in (False, True):
                yield problem(dtype, b, (h, h), s, d, causal)
        for i in range(DRAWN):
            yield drawn(dtype, seed, i)
        b, h, s, d = SHAPES[4]
        yield problem(dtype, b, (h, h), s, d, True, window_left=1024)
        b, h, s, d = SHAPES[3]
        yield problem(dtype, b, (h, h), s, d, False, lengths=True)
        for causal in (False, True):
            yield problem(dtype, 1, (16, 16), sum(MIXED), 128, causal, packed=MIXED)


# (b, h_q, h_kv, s_kv), d 128.
CACHES = [
    (1, 32, 8, 131072),
    (16, 32, 8, 8192),
    (64, 32, 8, 4096),
    (128, 64, 8, 2048),
    (1, 32, 8, 8192),
    (8, 32, 8, 512),
    (32, 16, 1, 8192),
]
LAUNCH_BOUND = 1 << 14


def cached(dtype, b, h_q, h_kv, s, page, graph=False, codes=False, d=128):
    size = 4 if dtype == "f32" else 2
    kv_size = 1 if codes else size
    name = f"attend_decode/{dtype}/b{b}_h{h_q}on{h_kv}_q1xkv{s}_d{d}"
    return {
        **problem(dtype, b, (h_q, h_kv), s, d, False),
        "name": name + (f"/page{page}" if page else "") + "/e4m3" * codes + "/graph" * graph,
        "s_q": 1, "cache": {"page": page, "graph": graph, "codes": codes},
        "mask": "decode paged" if page else "decode",
        "bytes": 2 * b * d * (h_q * size + h_kv * s * kv_size) + 4 * b * h_q,
        "flops": 4 * h_q * b * s * d,
    }


def decode():
    for dtype in ("bf16", "f16"):
        for b, h_q, h_kv, s in CACHES:
            for page in (None, 64):
                yield cached(dtype, b, h_q, h_kv, s, page)
                if b * s < LAUNCH_BOUND:
                    yield cached(dtype, b, h_q, h_kv, s, page, graph=True)
                if b == 64:
                    yield cached(dtype, b, h_q, h_kv, s, page, codes=True)


def expected(problem, implementation):
    """TFLOP/s this peer reached before, or None."""
    if problem["cache"]:
        # GB/s of K and V, as TFLOP/s.
        figures = EXPECTED_DECODE.get(problem["name"].split("/")[2], {}).get(implementation)
        wanted = figures and problem["dtype"] == "bf16"
        return figures * problem["flops"] / problem["bytes"] / 1000 if wanted else None
    if problem["dtype"] != "bf16" or problem["window_left"] is not None or problem["lengths"]:
        return None
    sizes = problem["name"].split("/")[2]
    figures = EXPECTED.get(sizes, {}).get(implementation)
    return figures[problem["causal"]] if figures else None
