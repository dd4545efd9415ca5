"""Products with weights, for the suite w4a16 of `flashcube bench`: cuBLAS on 16-bit weights, and Marlin
where its shared library is given.

A launch of a round is one pass over enough copies of the weights that none of them is still in the L2
cache when its turn comes again; nothing is flushed, since that would leave the cache full of lines to
be written back while the weights are read.
"""

import ctypes

# What a rotation reads at least: several L2 caches.
ROTATION = 512 << 20
SAMPLED = 4


class Cublas:
    """x [m, k] times the transpose of W [n, k], as torch's linear layers keep it."""

    layout = "linear"

    def __init__(self, torch):
        self.torch, self.version = torch, f"torch {torch.__version__}"

    def weights(self, problem, dtype, device):
        shape = (problem["n"], problem["k"])
        copies = -(-ROTATION // (2 * shape[0] * shape[1]))
        drawn = self.torch.randn(shape, device=device).to(dtype)
        return [drawn] + [drawn.clone() for _ in range(copies - 1)]

    def launches(self, x, weights, out):
        return [lambda w=w: self.torch.matmul(x, w.t(), out=out) for w in weights]

    def exact(self, x, weights):
        return x.double() @ weights[0].double().t()


class Marlin:
    """IST-DASLab's kernel in a shared library: f16, groups of 128, symmetric."""

    layout = "linear"

    def __init__(self, torch, path):
        self.torch, self.version = torch, f"marlin {path}"
        library = ctypes.CDLL(path)
        for name in ("marlin_cuda", "_Z11marlin_cudaPKvS0_PvS1_iiiS1_iiP11CUstream_stiiii"):
            self.function = getattr(library, name, None)
            if self.function is not None:
                break
        else:
            raise RuntimeError(f"{path} has no marlin_cuda")
        self.function.restype = ctypes.c_int

    def weights(self, problem, dtype, device):
        torch, n, k = self.torch, problem["n"], problem["k"]
        if dtype != torch.float16 or problem["zeros"] or problem["group"] != 128:
            raise ValueError("Marlin takes f16, groups of 128 and no zero points")
        copies = -(-ROTATION // (n * k // 2))
        scales = torch.full((k // 128, n), 0.01, dtype=dtype, device=device)
        self.workspace = torch.zeros(n // 128 * 16, dtype=torch.int32, device=device)
        # Every code 9: each weight is 0.01, so that any order of codes gives the same product.
        codes = torch.full((k // 16, 2 * n), 0x99999999 - (1 << 32), dtype=torch.int32, device=device)
        return [(codes.clone(), scales) for _ in range(copies)]

    def launches(self, x, weights, out):
        m, k = x.shape
        n = out.shape[1]
        pointer = lambda tensor: ctypes.c_void_p(tensor.data_ptr())

        def launch(codes, scales):
            stream = ctypes.c_void_p(self.torch.cuda.current_stream().cuda_stream)
            code = self.function(
                pointer(x), pointer(codes), pointer(out), pointer(scales), m, n, k,
                pointer(self.workspace), 128, x.device.index or 0, stream, -1, -1, -1, 16,
            )
            if code:
                raise RuntimeError(f"marlin_cuda: {code}")

        return [lambda w=w: launch(*w) for w in weights]

    def exact(self, x, weights):
        scale = weights[0][1][0, 0].double()
        return (x.double().sum(1) * scale)[:, None].expand(-1, weights[0][1].shape[1])


def implementations(torch, device, marlin):
    found = {"cublas_linear": Cublas(torch)}
    if marlin and device == "cuda":
        found["marlin"] = Marlin(torch, marlin)
    return found


def check(out, exact, epsilon):
    """|out - exact| / |exact| over sampled rows, as a share of twice the dtype's epsilon."""
    rows = sorted({i * (out.shape[0] - 1) // (SAMPLED - 1) for i in range(SAMPLED)})
    error = (out[rows].double() - exact[rows]).square().sum().item()
    share = (error / exact[rows].square().sum().item()) ** 0.5 / (2 * epsilon)
    return share if share == share else 1e308
