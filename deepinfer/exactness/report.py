"""A comparison as facts, and as a table for people."""

from __future__ import annotations

import json
from typing import Any

from deepinfer.config import ModelConfig
from deepinfer.exactness.choices import FACTOR
from deepinfer.exactness.comparison import Comparison
from deepinfer.exactness.noise import distance
from deepinfer.exactness.subject import Subject


def facts(found: Comparison, subject: Subject, device: str) -> dict[str, Any]:
    """Everything that is printed, in plain numbers. Errors are relative L2; `device` is where the engine ran.

    Products that are not exact have no faults: how far they are off is told, and judged by nothing.
    """
    differences = found.differences
    clear = int(found.clear_rows().sum())
    layers = [
        {
            "layer": layer,
            "noise": found.noise.hidden[layer],
            "forced": found.hidden_error(found.forced, layer),
            "free": found.hidden_error(found.free, layer),
            "experts": differences.experts[layer],
            "entries": differences.entries.get(layer),
        }
        for layer in sorted(found.forced.hidden)
    ]
    return {
        "device": device,
        "gemm": subject.gemm,
        "gemm_notice": subject.gemm_notice,
        "tokens": len(found.forced.logits),
        "drops_nothing": drops_nothing(subject.config, len(found.forced.logits)),
        "noise": found.noise.relative,
        "noise_abs": found.noise.absolute,
        "allowed": found.allowed,
        "forced": found.error,
        "free": distance(found.free.logits, found.expected.logits),
        "free_before_choices": found.free_error,
        "layers": layers,
        "clear_rows": clear,
        "same_tokens": {"forced": found.same_tokens(found.forced), "free": found.same_tokens(found.free)},
        "wrong_tokens": len(found.wrong_tokens(found.forced)),
        "first_differences": len(differences.first),
        "near_ties": len(differences.first) - len(differences.beyond),
        "rows_before_choices": differences.rows,
        "faults": found.faults() if subject.gemm == "exact" else [],
    }


def drops_nothing(config: ModelConfig, tokens: int) -> dict[str, int]:
    """What drops no key or entry of a prompt of so many tokens, and so is not measured by it, each with the tokens from
    which on it does, in every layer. What drops nothing of the longest prompt is left out.
    """
    indexer, origin = config.indexer, config.indexer.candidate_source
    ratio = max((config.ratios[layer] for layer in config.index_sources), default=1)
    least = {"window": config.attention.window + 1, "choice of entries": ratio * (indexer.topk + 1)}
    if origin is not None:
        least["candidate blocks"] = config.ratios[origin] * (indexer.candidate_topk * indexer.candidate_block + 1)
    return {name: count for name, count in least.items() if tokens < count <= config.max_positions}


def as_json(told: dict[str, Any]) -> str:
    """The facts as JSON. Errors of logits that are no numbers are null: JSON has no NaN."""
    plain = json.loads(json.dumps(told), parse_constant=lambda _: None)
    return json.dumps(plain, indent=2, allow_nan=False)


def table(told: dict[str, Any]) -> str:
    """The facts as text."""
    exact = told["gemm"] == "exact"
    products = "" if exact else f", {told['gemm']} products"
    lines = [
        f"{told['tokens']} tokens, engine on {told['device']}{products}; errors are relative L2 of what enters a layer",
        "",
        "layer    noise   forced     free   experts   entries   (rows that choose otherwise, free-running)",
    ]
    for one in told["layers"]:
        entries = "-" if one["entries"] is None else one["entries"]
        lines.append(
            f"{one['layer']:5d}  {one['noise']:.1e}  {one['forced']:.1e}  {one['free']:.1e}"
            f"  {one['experts']:8d}  {entries:>8}"
        )
    lines += [
        "",
        f"logits: noise {told['noise']:.1e} (largest {told['noise_abs']:.1e}); with the oracle's choices the engine is "
        f"off by {told['forced']:.1e} of {told['allowed']:.1e} allowed",
        f"best token: the oracle is clear (by {FACTOR:.0f} x the largest noise) in {told['clear_rows']} rows; "
        f"{told['wrong_tokens']} of them differ",
        f"free-running: {told['first_differences']} choices differ that no other explains, {told['near_ties']} of them "
        f"near-ties; the {told['rows_before_choices']} rows before them are off by {told['free_before_choices']:.1e}",
    ]
    if told["drops_nothing"]:
        missed = ", ".join(f"{name} (from {count} tokens on)" for name, count in told["drops_nothing"].items())
        lines.append(f"note: the prompt is too short for some parts to drop anything, and measures little: {missed}")
    if not exact:
        lines += _drift(told)
    else:
        lines += [f"FAULT: {text}" for text in told["faults"]] or ["exact: noise explains every difference"]
    return "\n".join(lines)


def _drift(told: dict[str, Any]) -> list[str]:
    """Of products that are not exact."""
    same = told["same_tokens"]
    lines = [
        f"drift: the logits are off by {told['forced']:.1e} with the oracle's choices and {told['free']:.1e} "
        f"free-running; the best token is the oracle's in {same['forced']:.1%} and {same['free']:.1%} of all rows",
        f"{told['gemm']} products are not exact: nothing here is a fault",
    ]
    return [*lines, told["gemm_notice"]] if told["gemm_notice"] else lines
