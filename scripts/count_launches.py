"""Count the operations of one pass of `LiveField`, by file: what a CUDA graph of it would launch.

python scripts/count_launches.py                      # 375×1242, 20,000 anchors, outlier search
python scripts/count_launches.py --anchors 12 --trust # without the outlier search

Counted are operations of torch that compute or copy, as a dispatch mode sees them; views and empty
tensors are none. Some operations, such as sorting and factorisation, launch several kernels. The
pass runs on a processor, but takes the branches of a GPU.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import scalefield
from scalefield.field.realtime import LiveField

PACKAGE = Path(scalefield.__file__).parent
FREE = {
    *("view", "_unsafe_view", "reshape", "_reshape_alias", "expand", "permute", "transpose", "t"),
    *("slice", "select", "unsqueeze", "squeeze", "split", "split_with_sizes", "unbind", "unfold"),
    *("diagonal", "alias", "detach", "as_strided", "lift_fresh", "empty", "new_empty"),
    *("empty_like", "empty_strided", "new_empty_strided"),
}
"""Operations that launch nothing."""


class CountOperations(TorchDispatchMode):
    """Counts operations by the innermost file of the package that calls them."""

    def __init__(self) -> None:
        super().__init__()
        self.by_file: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the operation, and count it unless it is free."""
        if func._schema.name.split("::")[1] not in FREE:
            self.by_file[calling_file()] += 1
        return func(*args, **(kwargs or {}))


def calling_file() -> str:
    """The innermost file of the package on the stack, relative to it."""
    frame = sys._getframe(2)
    while frame.f_back is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(PACKAGE) and path.parent.name != "runtime":
            return path.relative_to(PACKAGE).as_posix()
        frame = frame.f_back
    return "elsewhere"


def count_operations(shape: tuple[int, int], anchors: int, robust: bool) -> Counter[str]:
    """Operations of one pass with random anchors, by file."""
    live = LiveField(shape, max_anchors=anchors, robust=robust)
    live.static = True
    rng = torch.Generator().manual_seed(0)
    size = torch.tensor([shape[1] - 1.0, shape[0] - 1.0])
    live.inputs.pixels.copy_(torch.rand(anchors, 2, generator=rng) * size)
    live.inputs.depth_m.copy_(2 + torch.rand(anchors, generator=rng))
    live.run()  # what is made once and kept
    with CountOperations() as operations:
        live.run()
    return operations.by_file


def main() -> None:
    """Print the counts of one pass."""
    parser = argparse.ArgumentParser(description="Operations of one pass of LiveField.")
    parser.add_argument("--shape", type=int, nargs=2, default=(375, 1242), help="height, width")
    parser.add_argument("--anchors", type=int, default=20_000)
    parser.add_argument("--trust", action="store_true", help="without the outlier search")
    flags = parser.parse_args()
    torch.Tensor.is_cuda = property(lambda tensor: True)  # type: ignore[assignment]
    counts = count_operations(tuple(flags.shape), flags.anchors, not flags.trust)
    for file, count in counts.most_common():
        print(f"{count:6} {file}")
    print(f"{sum(counts.values()):6} in all")


if __name__ == "__main__":
    main()
