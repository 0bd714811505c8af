"""Text that has to match something: a JSON schema, a regular expression, a grammar, one of several texts.

`check_structure` says what is wrong with a request's `Structure`, as far as that needs no model. A `CompilePool` has a
`GrammarCompiler` make a `Grammar` of it in a thread, while the engine goes on; each completion has a `Matcher` of it,
which before each token says which ones may follow. The work is done by the package xgrammar, an extra that is imported
at the first structure.
"""

from __future__ import annotations

from deepinfer.structured_output.compiler import Grammar, GrammarCompiler, Matcher, check_structure
from deepinfer.structured_output.pool import Compilation, CompilePool

__all__ = ["Compilation", "CompilePool", "Grammar", "GrammarCompiler", "Matcher", "check_structure"]
