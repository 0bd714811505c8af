"""From a request to its sequences: all that can be wrong with it is told here, before anything is computed."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Listed
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from deepinfer.cache.prefix import Context
from deepinfer.engine.detokenize import Detokenizer
from deepinfer.engine.outputs import Completion, RequestOutput
from deepinfer.engine.prompts import is_id
from deepinfer.engine.sequence import Request, Sequence, Status
from deepinfer.engine.step import Limits
from deepinfer.errors import InputError, Option, kind_of, shown
from deepinfer.sampling.params import check_encodable
from deepinfer.structured_output import Compilation, CompilePool, GrammarCompiler

if TYPE_CHECKING:
    from deepinfer.model.load import LoadedModel


@dataclass(frozen=True)
class Admission:
    """What requests are judged by, and made into sequences with."""

    loaded: LoadedModel
    limits: Limits
    context: Context
    grammars: CompilePool | None

    @classmethod
    def of(cls, loaded: LoadedModel, limits: Limits, context: Context) -> Admission:
        """For a model; without its tokenizer there are neither texts nor grammars."""
        tokenizer, vocabulary = loaded.tokenizer, loaded.config.vocab_size
        if tokenizer is None:
            return cls(loaded, limits, context, None)
        return cls(loaded, limits, context, CompilePool(GrammarCompiler(tokenizer, vocabulary, loaded.stop_ids)))

    def admit(
        self, request: Request, arrivals: Iterator[int]
    ) -> tuple[RequestOutput, list[Sequence], Compilation | None]:
        """The output of a request, still empty, the sequences that will fill it, and the grammar that they wait for.

        arrivals: numbers that go up.

        Raises:
            TypeError, ValueError: the prompt or a parameter cannot be taken; the message names it.
            DeepInferError: what the request asks for is not installed.
        """
        params, tokens = request.params, self._tokens(request)
        self._check(request, tokens)
        compilation = self._compilation(request)
        root = replace(self.context, salt=request.salt).root()
        ends = () if params.ignore_eos else self.loaded.stop_ids
        tokenizer = self.loaded.tokenizer
        sequences: list[Sequence] = []
        for index in range(params.n):
            completion = Completion(index, logprobs=None if params.logprobs is None else [])
            sequences.append(
                Sequence(
                    request,
                    list(tokens),
                    len(tokens),
                    next(arrivals),
                    completion,
                    root,
                    stops=frozenset((*ends, *params.stop_token_ids)),
                    leader=sequences[0] if sequences else None,
                    text=Detokenizer(tokenizer, stop=params.stop, min_tokens=params.min_tokens) if tokenizer else None,
                    status=Status.WAITING if compilation is None else Status.COMPILING,
                )
            )
        output = RequestOutput(
            request.request_id,
            request.prompt if isinstance(request.prompt, str) else None,
            tokens,
            [one.completion for one in sequences],
        )
        if params.prompt_logprobs is not None:
            output.prompt_logprobs = sequences[0].prompt_logprobs = [None] * len(tokens)
        return output, sequences, compilation

    def _tokens(self, request: Request) -> list[int]:
        if not isinstance(request.prompt, str):
            return _listed(request.prompt)
        if self.loaded.tokenizer is None:
            raise InputError(
                "the prompt is a text, and the model was loaded without a tokenizer",
                next_step="give token ids, or a checkpoint folder with tokenizer.json",
            )
        check_encodable(request.prompt, "the prompt")
        # A text of nothing is no prompt, although the token that begins a text would be one.
        return self.loaded.tokenizer.encode(request.prompt) if request.prompt else []

    def _check(self, request: Request, tokens: Listed[int]) -> None:
        params, config = request.params, self.loaded.config
        if not tokens:
            raise InputError("the prompt is empty", next_step="give at least one token")
        if len(tokens) >= self.limits.length:
            cause, more = self.limits.of_length()
            raise InputError(
                f"the prompt has {len(tokens)} tokens, and prompt and output together may have {self.limits.length}",
                cause=cause,
                next_step=("shorten the prompt", *((", or ", *more) if more else ())),
            )
        for position, token in enumerate(tokens):
            if config.vision is not None and token == config.image_token_id:
                raise InputError(
                    f"the prompt asks for an image: token {position} is {token}",
                    cause="this engine takes no images",
                    next_step="leave them out",
                )
            if not 0 <= token < config.vocab_size:
                raise InputError(
                    f"the prompt's token {position} is {shown(token)}: token ids are 0 to {config.vocab_size - 1}",
                    cause="the prompt was made with another model's tokenizer",
                )
        for token in params.stop_token_ids:
            if token >= config.vocab_size:
                raise InputError(
                    f"stop_token_ids holds {token}, which no output ever has: token ids are 0 to "
                    f"{config.vocab_size - 1}",
                    cause="it is another model's",
                )
        if params.prompt_logprobs is not None and self.limits.truncation == "compact":
            raise InputError(
                "prompt_logprobs cannot be told with compact truncation, which leaves out a prompt's early rows",
                next_step=("open the model with ", Option("truncation"), ' "off" or "mask"'),
            )
        if params.stop and self.loaded.tokenizer is None:
            raise InputError("stop needs texts, and the model was loaded without a tokenizer")

    def _compilation(self, request: Request) -> Compilation | None:
        structure = request.params.structure
        if structure is None:
            return None
        if self.grammars is None:
            raise InputError("structure needs a tokenizer, and the model was loaded without one")
        return self.grammars.compile(structure)


def _listed(prompt: Listed[int]) -> list[int]:
    """Token ids, each a whole number."""
    if not isinstance(prompt, Listed) or isinstance(prompt, bytes | bytearray):
        raise TypeError(f"the prompt must be a text or a list of token ids, not {kind_of(prompt)}")
    for token in prompt:
        if not is_id(token):
            raise TypeError(f"the prompt's token ids must be whole numbers, not {kind_of(token)}")
    return list(prompt)
