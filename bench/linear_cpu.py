"""CPU time of SmolLM2's matrix products in the two orders that the worker chooses between.

    OMP_NUM_THREADS=1 python bench/linear_cpu.py

Per number of rows: milliseconds for the products of one step, 30 layers and the output matrix, as ``linear(x, W)`` and
as ``(W x^T)^T`` made contiguous; the best of 5, interleaved. CPU time, so that other load on the machine disturbs less.
"""

import time
from collections.abc import Callable

import torch
from torch.nn.functional import linear

LAYERS = 30
SHAPES = ((960, 576), (576, 576), (3072, 576), (576, 1536))
VOCAB = (49152, 576)
Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def by_rows_of_weight(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.mm(weight, x.t()).t().contiguous()


def main() -> None:
    products: dict[str, Product] = {"linear": linear, "transposed": by_rows_of_weight}
    weights = [torch.randn(shape) for shape in SHAPES * LAYERS] + [torch.randn(VOCAB)]
    print(f"rows  linear ms  transposed ms  ratio   ({torch.get_num_threads()} threads)")
    for rows in (1, 2, 4, 8, 16, 32, 64, 128, 256):
        inputs = {width: torch.randn(rows, width) for width in (576, 1536)}
        best = dict.fromkeys(products, float("inf"))
        with torch.inference_mode():
            for _ in range(5):
                for name, product in products.items():
                    started = time.process_time()
                    for weight in weights:
                        product(inputs[weight.shape[1]], weight)
                    best[name] = min(best[name], time.process_time() - started)
        plain, turned = best["linear"] * 1000, best["transposed"] * 1000
        print(f"{rows:4d}  {plain:9.1f}  {turned:13.1f}  {plain / turned:5.2f}", flush=True)


if __name__ == "__main__":
    main()
