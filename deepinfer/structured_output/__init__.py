"""Text that has to match something: a JSON schema, a regular expression, a grammar, one of several texts.

`GrammarCompiler` makes a `Grammar` of a request's `Structure` when the request is taken, or says what is wrong with it;
`check_structure` says as much of it as needs no model;
each of its completions has a `Matcher`, which before each token says which ones may follow. The work is done by the
package xgrammar, an extra that is imported at the first structure.
"""

from __future__ import annotations

from deepinfer.structured_output.compiler import Grammar, GrammarCompiler, Matcher, check_structure

__all__ = ["Grammar", "GrammarCompiler", "Matcher", "check_structure"]
