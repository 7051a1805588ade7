#!/usr/bin/env python3
"""Times of PyTorch on the shapes of benches/cuda.rs: gpu_torch.py RESULTS.json

Grouped products (torch._grouped_mm, where this PyTorch has it), and one torch.matmul of the same operations. Adds the medians
to RESULTS.json, or says why there are none. Needs no network.
"""
import json
import statistics
import sys

TOKENS = 8192
SHAPES = {"Qwen3-30B-A3B": (2048, 768, 128, 8), "GLM-4.5-Air": (4096, 1408, 128, 8)}


def offsets(rows, experts, even):
    """Ends of the groups, as benches/cuda.rs makes them."""
    weights = [7.0 if not even and e % 8 == 0 else 1.0 for e in range(experts)]
    ends, total = [], 0.0
    for weight in weights:
        total += weight
        ends.append(round(total / sum(weights) * rows))
    return ends


def main(path):
    try:
        import torch
    except ImportError as error:
        sys.exit(f"PyTorch is not here: {error}")
    if not torch.cuda.is_available():
        sys.exit("PyTorch finds no CUDA device")

    def seconds(call, rounds=9):
        times = []
        for _ in range(rounds + 1):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            call()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) / 1e3)
        return statistics.median(times[1:])

    def operand(*shape):
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16)

    grouped = getattr(torch, "_grouped_mm", None)
    rows_out = []
    print("shape          load      kept  call     grouped_mm ms  TFLOP/s  matmul ms  TFLOP/s")
    for name, (hidden, width, experts, top_k) in SHAPES.items():
        for even in (True, False):
            for kept in (1.0, 0.5):
                rows = int(TOKENS * top_k * kept)
                ends = torch.tensor(offsets(rows, experts, even), device="cuda", dtype=torch.int32)
                for call, n, k in (("gate_up", 2 * width, hidden), ("down", hidden, width), ("dgrad", width, hidden)):
                    x, w = operand(rows, k), operand(experts, n, k).transpose(1, 2)
                    dense = operand(n, k).t()
                    times = {"matmul": seconds(lambda: torch.matmul(x, dense)), "grouped_mm": None}
                    if grouped is not None:
                        try:
                            times["grouped_mm"] = seconds(lambda: grouped(x, w, offs=ends))
                        except RuntimeError as error:
                            print(f"torch._grouped_mm: {error}")
                            grouped = None
                    rate = {what: time and 2e-12 * rows * n * k / time for what, time in times.items()}
                    load = "balanced" if even else "uneven"
                    cell = lambda value, form: format(value, form) if value else "-"
                    print(
                        f"{name:<14} {load:<9} {kept:<5} {call:<8} "
                        f"{cell(times['grouped_mm'] and 1e3 * times['grouped_mm'], '.3f'):<14} {cell(rate['grouped_mm'], '.1f'):<8} "
                        f"{1e3 * times['matmul']:<10.3f} {rate['matmul']:.1f}"
                    )
                    rows_out.append({"shape": name, "load": load, "kept": kept, "call": call, "m": rows, "n": n, "k": k,
                                     "grouped_mm_seconds": times["grouped_mm"], "matmul_seconds": times["matmul"]})
    with open(path) as file:
        results = json.load(file)
    results["torch"] = {"version": torch.__version__, "rows": rows_out}
    with open(path, "w") as file:
        json.dump(results, file, indent=2)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
