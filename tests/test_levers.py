"""Named groups of a GPU's values, variants of a GPU, and their files."""

from __future__ import annotations

from pathlib import Path

import pytest

from hwmodels.catalog import changed, load_gpu
from hwmodels.errors import ConfigError
from hwmodels.folders import list_gpus
from hwmodels.levers import lever, levers, variant
from hwmodels.rules import value_at
from hwmodels.spec import FIELDS
from hwmodels.variant_file import write_variant

H200 = load_gpu("h200_sxm")


def test_every_key_of_a_lever_is_a_number_of_a_gpu_and_of_one_lever() -> None:
    keys = [key for each in levers().values() for key in each.keys]
    assert len(keys) == len(set(keys))
    assert all(FIELDS[key].type in (int, float) for key in keys)


@pytest.mark.parametrize("name", list_gpus())
@pytest.mark.parametrize("factor", [0.9, 1.1, 2.0])
def test_every_lever_turns_on_every_gpu(name: str, factor: float) -> None:
    gpu = load_gpu(name)
    for each in levers().values():
        turned = variant(gpu, [f"{each.name}=*{factor}"])
        assert all(value_at(turned, key) >= 0 for key in each.keys)


def test_a_lever_scales_all_its_values_and_rounds_whole_numbers() -> None:
    turned = variant(H200, ["tensor_cores=*2", "sms=*1.1"])
    assert turned.tensor.bf16_flops_per_clk_per_sm == 2 * H200.tensor.bf16_flops_per_clk_per_sm
    assert turned.tensor.fp64_flops_per_clk_per_sm == 2 * H200.tensor.fp64_flops_per_clk_per_sm
    assert turned.sm.count == 145
    assert lever("sms").factor(H200, 1.1) == pytest.approx(145 / 132)


def test_registers_stay_whole_allocations() -> None:
    turned = variant(H200, ["registers=*0.9"])
    assert turned.registers.per_sm % H200.registers.allocation_per_warp == 0
    assert 0.89 < turned.registers.per_sm / H200.registers.per_sm <= 0.9


def test_changes_apply_in_order_and_say_where_they_come_from() -> None:
    turned = variant(H200, ["l2.capacity_mib=100", "l2_capacity=*0.5"])
    assert turned.l2.capacity_mib == 50
    assert turned.provenance["l2.capacity_mib"].kind == "user"
    assert changed(H200, []) == H200


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["smz=*2"], "smz"),
        (["sms=140"], r"needs sms=\*factor"),
        (["sms=*-1"], "above 0"),
        (["sm.count=*nan"], "above 0"),
        (["hbm_bandwith=*1.5"], r"'hbm_bandwith'; did you mean hbm_bandwidth\?"),
        (["nope=3"], "unknown value or lever 'nope'; levers: sms, .*; values: tilewalk gpus show NAME"),
        (["label=mine"], "label names the GPU"),
        (["hbm.bandwith_gb_per_s=*2"], "did you mean hbm.bandwidth_gb_per_s"),
        (["clock=*20"], "needs a number from 1 to 20000 MHz"),
        (["l2.capacity_mib"], "key=value"),
    ],
)
def test_a_wrong_change_is_refused(sets: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        variant(H200, sets)


@pytest.mark.parametrize("text", ["hbm_bandwidth=*2", "hbm_bandwith=*2"])
def test_where_levers_are_not_known_their_keys_are_told(text: str) -> None:
    with pytest.raises(ConfigError, match=r"did you mean hbm.bandwidth_gb_per_s\?"):
        load_gpu("h200_sxm", [text])


@pytest.mark.parametrize(
    ("name", "message"), [("smz", "did you mean sms"), ("hbm.technology", "no number"), ("nope", "levers: [^.]*$")]
)
def test_an_unknown_lever_is_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        lever(name)


def test_a_variant_is_saved_as_a_file_that_inherits(tmp_path: Path) -> None:
    turned = variant(H200, ["tensor_cores=*2", "l2.capacity_mib=120"])
    path = tmp_path / "mine.toml"
    write_variant(path, "h200_sxm", H200, turned)
    read = load_gpu(path)
    assert read.model_dump(exclude={"name", "label"}) == turned.model_dump(exclude={"name", "label"})
    again = variant(read, ["sms=*2"])
    write_variant(tmp_path / "again.toml", str(path), read, again)
    assert load_gpu(tmp_path / "again.toml").sm.count == 264


def test_a_variant_does_not_overwrite_what_it_inherits(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    write_variant(path, "h200_sxm", H200, variant(H200, ["sms=*2"]))
    before = path.read_text("utf-8")
    with pytest.raises(ConfigError, match="another file"):
        write_variant(path, str(path), load_gpu(path), variant(load_gpu(path), ["sms=*2"]))
    with pytest.raises(ConfigError, match="toml"):
        write_variant(tmp_path / "mine.txt", "h200_sxm", H200, H200)
    assert path.read_text("utf-8") == before
