"""benchmarks.step: all of it on the tiny model, floors of calls that can be counted by hand, layers, and refusals."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks.ops import timing
from benchmarks.step import __main__ as command
from benchmarks.step import layers, measure, run
from benchmarks.step.call import Call
from benchmarks.step.floors import floor
from benchmarks.step.library import Watched
from benchmarks.step.record import watching
from benchmarks.step.setting import DRAWN_EXPERTS, take
from benchmarks.step.traffic import Floor
from deepinfer.config import parse_config
from deepinfer.config.constraints import problems_of
from deepinfer.errors import DeepInferError, UsageError
from deepinfer.loading.inventory import inventory
from deepinfer.loading.tiny import tiny_config
from deepinfer.model.per128 import Per128
from deepinfer.ops import dispatch
from deepinfer.ops.experts import expert_linear, expert_order
from deepinfer.ops.gather import gather
from deepinfer.ops.names import FAMILY_OF
from deepinfer.ops.per128 import column_scales, quantize_per128
from tests.engine.model_runs import single_thread
from tests.engine.plain_library import Plain
from tests.engine.real_config import real_config

threads = pytest.fixture(autouse=True, scope="module")(single_thread)

E4M3 = torch.float8_e4m3fn


def ints(*values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def zeros(*shape: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


@pytest.fixture(scope="module")
def dry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("step")
    options = ["--rows", "1,3", "--chunk", "48", "--context", "512", "--engram-rows", "300", "--out", str(out)]
    told = io.StringIO()
    with contextlib.redirect_stderr(told):
        assert command.main(["--dry-run", "--json", *options]) == 0
    assert "decode, 1 row\ndecode, 3 rows\n" in told.getvalue()
    assert told.getvalue().endswith("the times mean nothing\n")
    return out


def test_a_dry_run_measures_every_kernel(dry: Path) -> None:
    found = json.loads((dry / "results.json").read_text())
    assert [(one["kind"], one["rows"]) for one in found["forwards"]] == [("decode", 1), ("decode", 3), ("prefill", 48)]
    assert found["model"]["layers"] == 8 and found["model"]["candidates_limit"]
    assert found["backend"] == "reference" and found["torch"] == torch.__version__
    for one in found["forwards"]:
        kernels = {row["kernel"]: row for row in one["kernels"]}
        assert kernels.keys() <= FAMILY_OF.keys()
        assert kernels["hyper_step"]["calls"] == 16 and kernels["expert_linear"]["calls"] == 16
        assert kernels["engram_gather"]["calls"] == 2
        assert all(row["seconds"] > 0 and row["floor_seconds"] > 0 for row in kernels.values())
        assert one["kernels_seconds"] == pytest.approx(sum(row["seconds"] for row in kernels.values()))
        assert one["eager_seconds"] > 0 and one["graph_seconds"] is None and one["graph_problem"]
        candidates = "paged_candidate_index_logits" if one["kind"] == "decode" else "candidate_index_logits"
        assert kernels[candidates]["calls"] == 1  # one layer chooses among candidates
    one_row = found["forwards"][0]
    assert one_row["experts"] == [3] * 16  # top-3 of a row: three different ones in each layer


def test_its_table_has_facts_and_a_line_for_each_kernel(dry: Path) -> None:
    found, text = json.loads((dry / "results.json").read_text()), (dry / "table.md").read_text()
    assert f"torch {torch.__version__}" in text and "8 of 12 layers" in text
    assert "## Decode step, 3 rows" in text and "## Prefill chunk, 48 rows" in text
    assert text.count("| expert_linear | 16 |") == len(found["forwards"])
    assert sorted(path.name for path in dry.iterdir()) == ["results.json", "table.md"]


def test_of_the_experts_those_count_that_rows_were_sent_to() -> None:
    rows, k, o, experts = 3, 64, 96, 8
    seen: list[Call] = []
    with dispatch.using("reference"), watching(seen.append):
        order, offsets = expert_order(ints([5, 2], [2, -1], [5, 2]), experts)
        choices = torch.where(order >= 0, order // 2, -1)
        values, scales = zeros(rows, k).view(E4M3), zeros(rows, k // 32)
        expert_linear(values, scales, choices, offsets, zeros(experts, o, k // 2, dtype=torch.int8),
                      zeros(experts, o, k // 32))  # fmt: skip
    assert [call.factory for call in seen] == ["expert_order", "expert_linear"]
    activations = rows * (k + k // 32)
    weights = 2 * o * (k // 2 + k // 32)
    bookkeeping = 4 * (6 + experts + 1) + 6 * o * 2
    assert floor("expert_linear", seen[1].parameters, seen[1].arguments) == Floor(
        activations + weights + bookkeeping, 2 * 5 * k * o
    )


def test_watching_ends_with_its_block() -> None:
    seen: list[Call] = []
    with dispatch.using("reference"):
        with watching(seen.append):
            gather(torch.ones(4, 8), ints(0, 2))
        gather(torch.ones(4, 8), ints(0, 2))
    assert len(seen) == 1


def test_deepgemms_products_are_watched_and_counted() -> None:
    """Of two experts' parts in four blocks of rows, the rows that there are; of the third expert nothing."""
    library, seen = Watched(Plain()), []
    x = torch.randn(140, 128, generator=torch.Generator().manual_seed(1))
    with dispatch.using("reference"):
        rows = quantize_per128(x[:, :128])
        weight = Per128(zeros(256, 128).view(E4M3), zeros(2, 1, dtype=torch.float32))
        padded = quantize_per128(torch.cat((x, x[:116])))
        three = Per128(zeros(3, 64, 128).view(E4M3), zeros(3, 1, 1, dtype=torch.float32))
        with watching(seen.append):
            library.linear(rows, weight, zeros(140, 256, dtype=torch.bfloat16))
            library.experts(padded, three, ints(3, 64, 200), 64, 9, zeros(256, 64, dtype=torch.bfloat16))
        library.linear(rows, weight, zeros(140, 256, dtype=torch.bfloat16))
    first, second = seen
    assert floor(first.factory, first.parameters, first.arguments) == Floor(
        140 * (128 + 4) + 256 * 128 + 2 * 4 + 2 * 140 * 256, 2 * 140 * 256 * 128
    )
    assert floor(second.factory, second.parameters, second.arguments) == Floor(
        139 * (128 + 4 + 128) + 2 * (64 * 128 + 4) + 3 * 4, 2 * 139 * 64 * 128
    )
    second.arguments[-1].fill_(1)
    second()
    assert second.arguments[-1][:3].eq(0).all(), "a call that was kept does not run again"


def test_rows_that_pad_cost_nothing() -> None:
    choices, scales = ints(0, -1, 4, 5), column_scales(4, 2, "cpu")
    x, values = zeros(2, 256, dtype=torch.bfloat16), zeros(4, 256).view(E4M3)
    found = floor("quantize_per128", (True,), (x, choices, 3, values, scales))
    assert found == Floor(2 * 512 + 3 * (256 + 8) + 16)
    assert floor("quantize_per128", (False,), (x, None, 1, values[:2], scales[:2])) == Floor(2 * (512 + 256 + 8))
    gate_up, weights = zeros(4, 512, dtype=torch.bfloat16), zeros(6, dtype=torch.float32)
    found = floor("swiglu_per128", (True,), (gate_up, 10.0, weights, choices, values, scales))
    assert found == Floor(3 * (1024 + 256 + 8) + 24 + 16)
    shared, routed = zeros(2, 64, dtype=torch.bfloat16), zeros(4, 64, dtype=torch.bfloat16)
    assert floor("combine", (3,), (shared, routed, choices, shared.clone())) == Floor(3 * 128 + 2 * 256 + 16)


def test_weights_of_the_experts_take_twice_the_bytes_there() -> None:
    whole = layers.real_model()
    exact, wide = (layers.weight_bytes(whole, 1000, gemm) for gemm in ("exact", "deep_gemm"))
    experts = 40 * 384 * 3 * 5120 * 2304
    assert wide - exact == experts // 2 - experts // 32


def test_products_count_operands_and_operations() -> None:
    x, weight = zeros(3, 64, dtype=torch.bfloat16), zeros(5, 64, dtype=torch.bfloat16)
    out = zeros(3, 5, dtype=torch.float32)
    assert floor("bf16_linear", (), (x, weight, out)) == Floor(2 * 3 * 64 + 2 * 5 * 64 + 4 * 15, 2 * 3 * 64 * 5)
    grouped = (zeros(3, 2, 64).view(E4M3), zeros(3, 2, 2), zeros(64, 64).view(E4M3), zeros(2, 2))
    out = zeros(3, 64, dtype=torch.bfloat16)
    bytes_ = 3 * 2 * 66 + 64 * 64 + 4 + 2 * 3 * 64
    assert floor("fp8_grouped_linear", (), (*grouped, out)) == Floor(bytes_, 2 * 3 * 64 * 64)


def test_rows_of_tables_and_entries_of_caches_count_once() -> None:
    table, index, out = zeros(100, 16), ints(3, 3, -1, 100, 7), zeros(5, 16)
    assert floor("gather_tl", (), (table, index, out)) == Floor(2 * 16 + 5 * 4 + 5 * 16)
    q, made = zeros(2, 4, 512, dtype=torch.bfloat16), zeros(2, 4, 512, dtype=torch.float32)
    ring, window = zeros(3, 8, 1, 528), ints([0, 1, 2], [2, 1, -1])
    cache, chosen = zeros(2, 64, 1, 288), ints([127, 128, -1, 5], [5, 6, -1, -1])
    found = floor("sparse_attention_decode", (), (q, ring, window, cache, chosen, zeros(4), made))
    assert found.bytes == 3 * 528 + 3 * 288 + (2 * 4 * 512) * (2 + 4) + 4 * (6 + 8) + 4
    assert found.operations == 4 * (5 + 4) * 4 * 512
    alone = floor("sparse_attention_decode", (), (q, ring, window, None, None, zeros(4), made))
    assert alone.operations == 4 * 5 * 4 * 512


def test_index_keys_count_as_far_as_the_longest_row_sees_them() -> None:
    q = (zeros(3, 8, 64, dtype=torch.int8), zeros(3, 8, 4), zeros(3, 8, dtype=torch.bfloat16))
    of_q, lengths = 3 * 8 * 70, ints(3, 10, 4)
    out = zeros(3, 16, dtype=torch.float32)
    keys = (zeros(40, 64, dtype=torch.int8), zeros(40, 4))
    found = floor("index_logits", (8,), (*q, *keys, ints(0, 0, 20), lengths, out))
    assert found == Floor(14 * 68 + of_q + 4 * 6 + out.nbytes, 2 * 17 * 8 * 128)
    cache, tables = (zeros(5, 8, 64, dtype=torch.int8), zeros(5, 8, 4)), ints([1, 2], [1, 3], [4, -1])
    found = floor("paged_index_logits", (8, 8), (*q, *cache, tables, lengths, out))
    assert found == Floor((8 + 2 + 4) * 68 + of_q + 4 * (6 + 3) + out.nbytes, 2 * 17 * 8 * 128)
    blocks, out = ints([0, -1], [0, 1], [0, -1]), zeros(3, 16, dtype=torch.float32)
    found = floor("paged_candidate_index_logits", (8, 8, 8), (*q, *cache, tables, blocks, lengths, out))
    assert found == Floor((8 + 2 + 4) * 68 + of_q + 4 * (6 + 6 + 3) + out.nbytes, 2 * 17 * 8 * 128)


def test_what_is_changed_in_place_is_read_and_written() -> None:
    trunk, x = zeros(2, 4, 64, dtype=torch.bfloat16), zeros(2, 64, dtype=torch.bfloat16)
    small = (zeros(2, 4), zeros(2, 16), zeros(2, 4), zeros(24, 256), zeros(24), zeros(3), zeros(64))
    rest = sum(one.nbytes for one in small)
    operations = 2 * 2 * 24 * 256
    other = torch.zeros_like(trunk)
    assert floor("hyper_step", (), (trunk, x, *small, trunk)) == Floor(2 * trunk.nbytes + x.nbytes + rest, operations)
    assert floor("hyper_step", (), (trunk, x, *small, other)) == Floor(2 * trunk.nbytes + x.nbytes + rest, operations)
    assert floor("hyper_step", (), (trunk, None, *small, trunk)) == Floor(trunk.nbytes + rest, operations)
    heads, table = zeros(2, 4, 512, dtype=torch.bfloat16), zeros(50, 64, dtype=torch.float32)
    assert floor("rotate", (), (heads, ints(3, 3), table, heads)) == Floor(2 * 8 * 128 + 8 + 256)
    assert floor("rotate", (), (heads, ints(3, 4), table, heads.clone())) == Floor(2 * 8 * 1024 + 8 + 512)


class Capturing:
    """A clock that knows how long batches take, and captures them if it is to."""

    def __init__(self, seconds: float, problem: str = "") -> None:
        self.each, self.problem, self.captures = seconds, problem, 0

    def seconds(self, batch: timing.Batch) -> float:
        batch()
        return self.each

    def captured(self, batch: timing.Batch) -> timing.Batch:
        if self.problem:
            raise timing.CannotCapture(self.problem)
        self.captures += 1
        return batch


@pytest.mark.parametrize(
    ("seconds", "problem", "how", "captures"),
    [(0.001, "", "graph", 1), (0.001, "waits", "stream", 0), (1.0, "", "stream", 0)],
)
def test_short_calls_are_timed_in_one_graph(seconds: float, problem: str, how: str, captures: int) -> None:
    clock, ran = Capturing(seconds, problem), []
    calls = [Call("gather_tl", (), ran.append, (index,), {}) for index in range(3)]
    found = measure.timed(calls, measure.Cold(clock, torch.device("cpu"), 0), 2)
    assert found == (seconds, how) and clock.captures == captures
    assert ran == [0, 1, 2] * 3  # once to see how long, and two samples


def test_the_longer_of_both_is_the_floor() -> None:
    assert Floor(100, 10).seconds(10.0, 10.0) == 10.0
    assert Floor(100, 1000).seconds(10.0, 10.0) == 100.0
    assert floor("select_topk", (4,), (zeros(2, 8, dtype=torch.float32), ints(3, 99), ints(*[0] * 8))) == Floor(
        11 * 4 + 2 * 4 + 8 * 4
    )


def test_the_real_model_is_that_of_its_configuration() -> None:
    whole = parse_config(real_config())
    assert layers.real_model() == replace(whole, ratios=whole.ratios[:40], draft=None, vision=None)


@pytest.mark.parametrize("count", range(8, 41))
def test_fewer_layers_are_a_model_with_every_kind(count: int) -> None:
    whole = layers.real_model()
    made = layers.cut(whole, count)
    assert made.layers == count == len(made.ratios) and not problems_of(made)
    kinds = {layers.kind(made, layer) for layer in range(count)}
    assert kinds == {layers.kind(whole, layer) for layer in range(whole.layers)} and len(kinds) == 8
    if count >= 16:  # below, one of each kind is most of them
        assert abs(made.ratios.count(2) / count - 18 / 40) < 0.1 and abs(made.ratios.count(1) / count - 20 / 40) < 0.1


def order(**changed: object) -> run.Order:
    plain = run.Order("cpu", (1, 64), 4096, 4096, 1_000_000, None, 1)
    return replace(plain, **changed)  # type: ignore[arg-type]


def test_as_many_layers_are_taken_as_fit() -> None:
    whole, free = layers.real_model(), 139 * 2**30
    count = run.layers_that_fit(whole, order(), free)
    assert run.needed(layers.cut(whole, count), order()) <= free * run.USED
    assert run.needed(layers.cut(whole, count + 1), order()) > free * run.USED
    assert run.layers_that_fit(whole, order(context=65536), free) < count
    assert run.layers_that_fit(whole, order(), None) == 40
    with pytest.raises(DeepInferError, match="a layer of each kind takes"):
        run.layers_that_fit(whole, order(), 40 * 2**30)


def test_drawn_weights_are_those_of_the_inventory() -> None:
    whole = parse_config(tiny_config())
    config = layers.cut(whole, 8)
    found = take(config, torch.device("cpu"), engram_rows=100)
    shared, gates = {}, []
    for name, spec in inventory(config).items():
        tensor = found(name)
        rows = min(100, spec.shape[0]) if ".engram.embed." in name else spec.shape[0]
        assert tensor.dtype == spec.dtype and tuple(tensor.shape) == (rows, *spec.shape[1:]), name
        if name.endswith("experts.1.w1.weight") or name.endswith(f"experts.{DRAWN_EXPERTS + 1}.w1.weight"):
            shared.setdefault(name.split(".")[1], set()).add(tensor.data_ptr())
        if name.endswith("ffn.gate.weight"):
            gates.append(tensor)
    assert all(len(one) == 1 for one in shared.values()) and len(shared) == 8
    assert all(len(torch.unique(gate, dim=0)) == 12 for gate in gates)  # experts are told apart


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--gemm", "fp8"], "invalid choice: 'fp8'"),
        (["--rows", "0"], "'0' is no whole number from 1"),
        (["--rows", "1,x"], "'x' is no whole number from 1"),
        (["--chunk", "-1"], "'-1' is no whole number from 1"),
        (["--context", "4000", "--chunk", "100"], "more than the 4096 tokens that the model takes"),
        (["--layers", "7"], "7 layers cannot be taken from a model of 12 with 8 kinds"),
        (["--layers", "13"], "ask for 8 to 12 layers"),
        (["--unknown"], "--unknown"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: list[str], said: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        command.main(["--dry-run", "--out", str(tmp_path / "out"), *options])
    assert said in str(refused.value) and refused.value.exit_code == 1
    assert not list(tmp_path.glob("out/*"))


def test_a_folder_without_a_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DeepInferError, match=r"config\.json"):
        command.main(["--dry-run", "--model", str(tmp_path), "--out", str(tmp_path / "out")])


def test_a_dry_run_of_a_large_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(real_config()))
    with pytest.raises(UsageError, match="too large for a dry run"):
        command.main(["--dry-run", "--model", str(tmp_path)])


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be made"):
        command.main(["--dry-run", "--out", str(tmp_path / "file" / "out")])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_the_way_out_is_told() -> None:
    with pytest.raises(DeepInferError, match="PyTorch sees no GPU") as told:
        command.main([])
    assert "--dry-run" in told.value.next_step
