"""A user's GPU file: inheritance, bare values, and one clear line for everything that can be wrong with it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hwmodels import ConfigError, load_gpu
from hwmodels.spec import FIELDS
from hwmodels.units import UNITS


@pytest.fixture
def write(tmp_path):
    """Write a file into the test's folder and return its path."""

    def _write(text, name="my.toml"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return _write


def refusal_of(path):
    """The one line with which the file is refused."""
    with pytest.raises(ConfigError) as refused:
        load_gpu(path)
    message = str(refused.value)
    assert message.isprintable()
    assert len(message) < 600
    return message


def loads_or_is_refused(path):
    """The message of the refusal, "" where the file loads; no other error may escape."""
    try:
        load_gpu(path)
    except ConfigError as refused:
        return str(refused)
    return ""


def test_a_file_inherits_and_overrides_with_bare_values(write):
    gpu = load_gpu(write('label = "Twice"\ninherits = "h200_sxm"\nhbm.bandwidth_gb_per_s = 9600\n'))
    base = load_gpu("h200_sxm")
    assert (gpu.name, gpu.label, gpu.architecture) == ("my", "Twice", "hopper")
    assert gpu.hbm.bandwidth_gb_per_s == 9600
    assert gpu.provenance["hbm.bandwidth_gb_per_s"].kind == "user"
    assert gpu.provenance["hbm.bandwidth_gb_per_s"].source.endswith("my.toml")
    assert gpu.provenance["l2.latency_cycles"] == base.provenance["l2.latency_cycles"]
    assert gpu.sm == base.sm


def test_a_byte_order_mark_changes_nothing(write):
    assert load_gpu(write('\ufeffinherits = "h200_sxm"\nsm.count = 16\n')).sm.count == 16
    assert "line 1: not UTF-8 text (byte 0xff)" in refusal_of(write(b"\xef\xbb\xbf\xff"))


def test_a_file_may_say_kind_and_source(write):
    entry = '{ value = 500, kind = "microbenchmark", source = "my bench" }'
    gpu = load_gpu(write(f'inherits = "t4"\n[hbm]\nlatency_ns = {entry}\n'))
    assert gpu.provenance["hbm.latency_ns"] == ("ns", "microbenchmark", "my bench")


def test_a_file_inherits_from_another_by_relative_path(write, tmp_path, monkeypatch):
    (tmp_path / "base").mkdir()
    write('inherits = "a100_sxm_80gb"\nsm.count = 54\nl2.capacity_mib = 20\n', "base/half.toml")
    write('inherits = "base/half.toml"\nl2.capacity_mib = 10\n')
    monkeypatch.chdir(tmp_path / "base")
    gpu = load_gpu("../my.toml", ["sm.count=*2"])
    assert (gpu.sm.count, gpu.l2.capacity_mib, gpu.hbm.capacity_gb) == (108, 10, 80)


def test_a_whole_file_of_its_own_takes_the_architecture_and_carried_constants(write):
    shipped = Path(__file__).parents[1] / "hwmodels" / "gpus" / "l40s.toml"
    gpu, same = load_gpu(write(shipped.read_text(), "twin.toml")), load_gpu("l40s")
    assert gpu.name == "twin"
    assert gpu.model_dump(exclude={"name"}) == same.model_dump(exclude={"name"})
    assert gpu.provenance == same.provenance


def test_shipped_values_never_change_with_a_users_file(write):
    before = load_gpu("h200_sxm")
    load_gpu(write('inherits = "h200_sxm"\nsm.count = 1\n'))
    assert load_gpu("h200_sxm") == before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("hbm.bandwith_gb_per_s = 1", "unknown key 'hbm.bandwith_gb_per_s'; did you mean hbm.bandwidth_gb_per_s?"),
        ("hbm.bandwidth_gib_per_s = 1", "the unit is GB/s (10^9 bytes a second); did you mean hbm.bandwidth_gb_per_s?"),
        ("hbm.latency_ms = 1", "the unit is ns; did you mean hbm.latency_ns?"),
        ("hbmm.latency_ns = 1", "unknown key 'hbmm'"),
        ("hbm = 3", "hbm = 3: needs a table, [hbm]"),
        ("hbm.latency_ns = nan", "hbm.latency_ns = nan: needs a number from 1 to 100000 ns"),
        ("hbm.latency_ns = -inf", "hbm.latency_ns = -inf: needs a number"),
        ("hbm.latency_ns = -3", "hbm.latency_ns = -3: needs a number from 1 to 100000 ns"),
        ("hbm.latency_ns = true", "hbm.latency_ns = true: needs a number"),
        ('hbm.latency_ns = "200"', "hbm.latency_ns = '200': needs a number"),
        ("hbm.latency_ns = [1]", "hbm.latency_ns = a list: needs a number"),
        ("hbm.latency_ns = 2026-01-01", "hbm.latency_ns = a date: needs a number"),
        (f"hbm.latency_ns = {'9' * 400}", "hbm.latency_ns = an integer of 1329 bits: needs a number"),
        (f"sm.count = 0x{'f' * 5000}", "sm.count = an integer of 20000 bits: needs a whole number from 1 to 4096"),
        (f"sm.count = {'9' * 5000}", "broken TOML: Exceeds the limit (4300 digits)"),
        ("sm.count = true", "sm.count = true: needs a whole number from 1 to 4096"),
        ("sm.count = 132.0", "sm.count = 132.0: needs a whole number"),
        ("tensor.tma = 1", "tensor.tma = 1: needs true or false"),
        ("hbm.technology = 3", "hbm.technology = 3: needs text: kind of memory"),
        ("hbm.latency_ns = { value = 3, unit = 'ns' }", "hbm.latency_ns: unknown part 'unit'; write { value = ..."),
        ("hbm.latency_ns = { kind = 'user' }", "hbm.latency_ns: has no value; write { value = ..."),
        ("hbm.latency_ns = { value = 3, kind = 'mesured' }", "kind 'mesured' is none; known: assumed, datasheet"),
        ("hbm.latency_ns = { value = 3, kind = 'datashet' }", "kind 'datashet' is none; did you mean datasheet?"),
        ("hbm.latency_ns = { value = 3, source = '' }", "hbm.latency_ns: source '': needs text"),
        ("clock.base_mhz = 2000", "impossible combination: the base clock is above the boost clock"),
        ('architecture = "ampere"', "architecture 'ampere' differs from 'hopper' of h200_sxm.toml, which it inherits"),
        ("label = 3", "label = 3: needs text"),
        ('label = ""', "label = '': needs a short text in one line"),
        ('carried_from = "t4"', "unknown key 'carried_from'"),
        ("hbm.latency_ns = 1\nhbm.latency_ns = 2", "line 4: broken TOML: Cannot overwrite a value"),
        ("this is not TOML", "line 3: broken TOML"),
        ("a = [", "broken TOML"),
        ('"a\\nb" = 3', "unknown key 'a\\nb'"),
    ],
)
def test_what_is_wrong_in_a_file_is_said_in_one_line(write, text, said):
    message = refusal_of(write('# mine\ninherits = "h200_sxm"\n' + text + "\n"))
    assert message.split("my.toml: ", 1)[-1].startswith(said) or said in message, message
    assert "my.toml" in message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "label and vendor and architecture missing; state it or inherit from a GPU"),
        ('label = "X"\nvendor = "Y"\narchitecture = "hoper"', "unknown architecture 'hoper'; did you mean hopper?"),
        (
            'label = "X"\nvendor = "Y"\narchitecture = "hopper"',
            "sm.count is missing: needs a whole number from 1 to 4096; ",
        ),
        ('inherits = "h200_sxn"', "inherits from unknown GPU 'h200_sxn'; did you mean h200_sxm?"),
        ('inherits = "gone.toml"', "gone.toml: no such file"),
        ('inherits = "my.toml"', "inherits in a circle: my.toml -> my.toml"),
        ('inherits = "h200_sxm', "line 1: broken TOML"),
        (b"\x7fELF\x02\x01\x00\xff\xfe", "line 1: broken TOML|line 1: not UTF-8 text"),
        (b"label = 'x'\n\nvendor = '\xff'\n", "line 3: not UTF-8 text \\(byte 0xff\\)"),
        (b"\0" * 100, "line 1: broken TOML"),
        ("a = " + "[" * 50_000, "broken TOML: nested too deeply"),
        ("#" * 1_000_001, "is larger than 1,000,000 bytes"),
    ],
    ids=lambda item: str(item)[:24],
)
def test_files_that_cannot_stand_are_refused(write, text, said):
    message = refusal_of(write(text))
    assert "my.toml: " in message or "gone.toml: " in message
    assert re.search(said if isinstance(text, bytes) else re.escape(said), message), message


def test_a_circle_of_files_is_named(write):
    write('inherits = "b.toml"\n', "a.toml")
    write('inherits = "c.toml"\n', "b.toml")
    assert "a.toml -> b.toml -> c.toml -> a.toml" in refusal_of(
        write('inherits = "a.toml"\n', "c.toml").with_name("a.toml")
    )


def test_an_endless_chain_is_refused(write):
    write('inherits = "h200_sxm"\n', "f0.toml")
    for i in range(1, 20):
        path = write(f'inherits = "f{i - 1}.toml"\n', f"f{i}.toml")
    assert "inherits through more than 16 files" in refusal_of(path)


def test_paths_that_are_no_file_are_refused(tmp_path):
    assert "is a directory or device, not a file" in refusal_of(tmp_path)
    assert "is a directory or device" in refusal_of("/dev/zero")
    assert "no such file; shipped GPUs: a100_pcie_40gb" in refusal_of(tmp_path / "none.toml")
    assert "no such file" in refusal_of("a\0b.toml")
    assert "cannot be read: File name too long" in refusal_of("x" * 5000 + ".toml")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("h200", "did you mean h200_sxm?"),
        ("H100_SXM", "did you mean h100_sxm?"),
        ("v100", "did you mean v100_pcie_32gb or v100_sxm2_32gb?"),
        ("l4s", "did you mean l40s?"),
        ("", "known: a100_pcie_40gb"),
        ("gaudi3", "known: a100_pcie_40gb"),
    ],
)
def test_an_unknown_name_suggests_the_nearest(name, said):
    assert said in refusal_of(name)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace"))))
def test_random_files_load_or_are_refused(tmp_path, raw):
    path = tmp_path / "random.toml"
    path.write_bytes(b'inherits = "t4"\n' + raw)
    message = loads_or_is_refused(path)
    assert message.isprintable()


SCALARS = st.one_of(
    st.integers(),
    st.floats(),
    st.booleans().map(lambda flag: str(flag).lower()),
    st.just('"x"'),
    st.just("{ value = 1 }"),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(list(FIELDS)), SCALARS, max_size=3))
def test_random_values_load_or_are_refused(tmp_path, values):
    path = tmp_path / "random.toml"
    path.write_text('inherits = "h200_sxm"\n' + "".join(f"{key} = {value}\n" for key, value in values.items()))
    message = loads_or_is_refused(path)
    assert message.isprintable()


def test_the_docs_table_of_keys_is_the_specification():
    text = (Path(__file__).parents[1] / "docs" / "gpus.md").read_text()
    listed = dict(re.findall(r"^\| `([a-z_0-9.]+)` \| (\S+) \|", text, re.MULTILINE))
    assert listed == {key: field.unit for key, field in FIELDS.items() if not field.is_constant}
    assert set(listed.values()) <= set(UNITS.values()) | {"count", "yes/no", "text"}


class BytesPath:
    def __fspath__(self):
        return b"t4"


@pytest.mark.parametrize("name", [None, 5, b"t4", ["t4"], BytesPath(), True])
def test_what_is_no_name_is_refused(name):
    assert "must be text or a path" in refusal_of(name)


@pytest.mark.parametrize(
    "overrides", [None, 5, "sm.count=4", b"sm.count=4", [None], [b"sm.count=4"], [("sm.count", 4)]]
)
def test_overrides_that_are_no_texts_are_refused(overrides):
    with pytest.raises(ConfigError, match="overrides") as refused:
        load_gpu("t4", overrides)
    assert str(refused.value).isprintable()


def test_overrides_may_come_from_a_generator():
    assert load_gpu("t4", (f"sm.count={count}" for count in (4, 6))).sm.count == 6
