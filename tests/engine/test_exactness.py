"""The engine against the oracle: with the oracle's choices, and free-running (model_spec 3, 6)."""

from __future__ import annotations

import functools

import pytest
import torch

from deepinfer.exactness import Comparison, choices_of, compare, run_engine, standard_prompt
from deepinfer.exactness.noise import measure
from deepinfer.loading.tiny import PROMPT_TOKENS, VOCABULARY
from tests.engine.exactness_subject import engine, faulty, subject
from tests.engine.model_runs import config, prompt, single_thread, tensors

one_thread = pytest.fixture(autouse=True, scope="module")(single_thread)

FLOOR = 1e-4
"""What single values that round the other way make of a layer's input, where the noise has hardly any."""


@functools.cache
def long(device: str) -> Comparison:
    """The standard prompt, whole."""
    return compare(subject(device, 64), standard_prompt(VOCABULARY, PROMPT_TOKENS))


@functools.cache
def short(device: str) -> Comparison:
    """A prompt beyond window, top-k and candidates, in pieces of odd lengths, its end decoded."""
    return compare(subject(device), prompt(180), chunk=37, decoded=20)


def _allowed(found: Comparison, layer: int) -> float:
    """Tighter than what the logits are allowed: a fault is to be seen behind the layer that has it."""
    return 2 * found.noise.hidden[layer] + FLOOR


def _exact(found: Comparison) -> None:
    for layer in found.forced.hidden:
        error, allowed = found.hidden_error(found.forced, layer), _allowed(found, layer)
        print(f"layer {layer}: {error:.1e}, allowed {allowed:.1e}")
        assert error <= allowed, f"layer {layer}"
    print(f"logits: {found.error:.1e}, allowed {found.allowed:.1e}; noise {found.noise.relative:.1e}")
    assert found.allowed == max(2 * found.noise.relative, 5e-3) and found.error <= found.allowed
    clear = found.clear_rows()
    print(f"the oracle's best token is clear in {int(clear.sum())} of {len(clear)} rows")
    assert clear.float().mean() > 0.5 and found.wrong_tokens(found.forced) == []


def _free(found: Comparison) -> None:
    differences = found.differences
    print(f"{len(differences.first)} choices differ first, {len(differences.beyond)} of them no near-ties")
    print(f"the {differences.rows} rows before them: {found.free_error:.1e}, allowed {found.allowed:.1e}")
    assert differences.beyond == () and differences.rows > 0
    assert found.free_error <= found.allowed and found.wrong_tokens(found.free, differences.rows) == []
    assert found.faults() == []


def test_forced_in_pieces_and_decoded() -> None:
    _exact(short("cpu"))


def test_free_in_pieces_and_decoded() -> None:
    _free(short("cpu"))


@pytest.mark.slow
def test_the_standard_prompt_forced() -> None:
    _exact(long("cpu"))


@pytest.mark.slow
def test_the_standard_prompt_free() -> None:
    _free(long("cpu"))


@pytest.mark.gpu
def test_forced_on_a_gpu() -> None:
    _exact(short("cuda"))
    _exact(long("cuda"))


@pytest.mark.gpu
def test_free_on_a_gpu() -> None:
    _free(short("cuda"))
    _free(long("cuda"))


def test_noise_is_small_enough_to_see_faults_beside_it() -> None:
    found = short("cpu").noise
    assert 0 < found.relative < 1e-3 and found.absolute < 0.1


_NAMES = (
    "layers.0.attn.attn_sink", "layers.1.engram.k_weight", "layers.2.attn.compressor.wgate.weight",
    "layers.2.hc_ffn_base", "layers.4.attn.kv_norm.weight", "layers.6.attn.compressor.norm.weight",
    "layers.9.hc_attn_scale", "layers.3.attn.q_norm.weight",
)  # fmt: skip


@pytest.mark.parametrize("name", _NAMES)
def test_a_fault_in_one_part_of_one_layer_is_seen(name: str) -> None:
    """The engine has another value there: the error stays within bounds up to that layer, and is beyond them after."""
    found, tokens = short("cpu"), prompt(180)
    changed = tensors()[name].clone()
    changed = changed * 1.25 if "norm" in name else -changed
    run = run_engine(faulty({name: changed}).model, tokens, forced=choices_of(found.expected))
    layer = int(name.split(".")[1])

    def beyond(of: int) -> bool:
        return found.hidden_error(run, of) > _allowed(found, of)

    assert not any(beyond(of) for of in range(layer + (".engram." not in name)))
    assert beyond(layer + 1)


def test_wrong_choices_are_no_near_ties() -> None:
    """An engine whose gate of one layer is another's: its choices differ first there, and by more than noise."""
    name = "layers.5.ffn.gate.bias"
    found = compare(faulty({name: tensors()[name].roll(1)}), prompt(70))
    assert found.differences.beyond and {one.layer for one in found.differences.beyond} == {5}
    assert any("layer 5 chooses other experts" in text for text in found.faults())


def test_the_noise_is_of_the_same_choices() -> None:
    own, tokens = subject(), prompt(60)
    expected = own.oracle()(torch.tensor(tokens))
    noise = measure(own, tokens, expected)
    assert noise.hidden[0] == 0 and noise.relative > 0 and set(noise.entries) == set(config().index_sources)
    assert all(0 <= size < 1e-2 for size in (*noise.scores.values(), *noise.hidden.values()))


def test_what_cannot_be_run_is_refused() -> None:
    for chunk, decoded in ((0, 5), (0, -1), (-1, 0)):
        with pytest.raises(ValueError, match="one at least is prefilled"):
            run_engine(engine(), prompt(5), chunk=chunk, decoded=decoded)
