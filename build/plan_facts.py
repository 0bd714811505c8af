"""What is known of a target's base before and while it is planned: its facts, and what overlays make of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from build import cuda_headers
from build.inspection import Inspection
from build.matrix.constraints import Facts, satisfies
from build.matrix.formats import REQUIRE_FACTS
from build.matrix.model import Component, Target


class KnownFacts:
    """What is known of one target's base, and what the overlays planned so far make of it."""

    def __init__(
        self,
        target: Target,
        inspection: Inspection | None,
        base_kind: str,
        sources: Mapping[str, str],
        replace_nccl: bool,
    ) -> None:
        self.target = target
        self.inspection = inspection
        self.base_kind = base_kind
        self.sources = sources
        self.may_replace = replace_nccl or target.kind == "image"
        self.speaker = "the base" if target.kind == "image" else "this machine"
        replica = target.replica.expect if target.replica is not None and base_kind == "replica" else {}
        self.facts: dict[str, str | None] = (
            inspection.facts() if inspection is not None else {**target.expect, **replica}
        )
        # The host has no `expect`: nothing is known of it before an inspection, so nothing is ruled out either.
        self.unknown = inspection is None and not self.facts
        self.unstated = _unstated(self.facts) if inspection is None else frozenset()
        self.base: Facts = dict(self.facts)
        self.missing: dict[str, str] = {}
        kit = inspection.nvcc if inspection is not None and cuda_headers.has_kit(inspection) else None
        self.own_headers = cuda_headers.own_headers(self.base.get("cuda"), kit)
        # This machine compiles with what it has; the builder of an image has the headers of images/builder/ too.
        locked = cuda_headers.locked_versions(sources) if target.kind == "image" else []
        self.headers_over = cuda_headers.laid_over(self.own_headers, locked)

    def here(self, component: Component) -> Component:
        """The component as this base needs it: without shims that are for other bases."""
        meant = all(satisfies(self.base.get(fact), wanted) for fact, wanted in component.shims_where.items())
        return component if meant else dataclasses.replace(component, shims=())

    def facts_for(self, component: Component) -> dict[str, str | None]:
        """The facts that a component's constraints are about: for what is compiled, CUDA is the headers' version."""
        if component.kind == "overlay":
            return self.facts
        return {**self.facts, "cuda": self.headers_over or self.own_headers}

    def overlaid(self, component: Component, problem: str) -> None:
        """Let an overlay's version count as the fact for those that come after it, or remember the `problem`."""
        assert component.provides is not None
        if problem:
            self.missing[component.provides] = problem
        else:
            self.facts[component.provides] = component.version


def _unstated(facts: Facts) -> frozenset[str]:
    """The facts that `expect` leaves out: what they are, only an inspection can say.

    A torch that is stated without a CUDA is a build for the CPU, as PyPI's version for it need not say.
    """
    left_out = frozenset(REQUIRE_FACTS) - facts.keys()
    return left_out - {"cuda", "nccl"} if facts.get("torch") and "cuda" in left_out else left_out
