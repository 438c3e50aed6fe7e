"""What `simulate` refuses of a caller's arguments, in one line."""

from __future__ import annotations

from typing import Any

import pytest

from hwmodels import load_gpu
from hwmodels.errors import ConfigError
from sim import simulate
from workloads import Gemm

WORK = Gemm(64, 64, 64)
H200: Any = load_gpu("h200_sxm")


@pytest.mark.parametrize(
    ("workload", "gpu", "more", "said"),
    [
        (None, None, {}, "workload = 'None'"),
        (WORK, "a name", {}, "gpu = 'a name': must be a GPU"),
        (WORK, None, {"config": {}}, "config = '{}'"),
        (WORK, None, {"config": "x"}, "config = 'x'"),
        (WORK, None, {"clock_mhz": "1000"}, "clock_mhz = '1000'"),
        (WORK, None, {"clock_mhz": float("nan")}, "clock = nan MHz"),
        (WORK, None, {"tile": "nonsense"}, "tile = 'nonsense'"),
        (WORK, None, {"family": "nonsense"}, "family = 'nonsense'"),
        (WORK, None, {"without": ("nonsense",)}, "without = 'nonsense'"),
    ],
)
def test_what_is_no_argument_is_refused_by_name(workload: Any, gpu: Any, more: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("(", r"\(").replace("{", r"\{")) as refused:
        simulate(workload, gpu or H200, **more)
    assert "\n" not in str(refused.value)
