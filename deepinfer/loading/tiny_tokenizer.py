"""The tiny model's tokenizer: bytes, and the pairs of a short text, with the special tokens of the real one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from deepinfer.loading.write import system_errors
from deepinfer.packages import need
from deepinfer.tokenizer import BOS, EOS, PAD

NOISE = "<｜noise｜>"
SPECIAL = (
    BOS, EOS, PAD, NOISE, "<｜System｜>", "<｜User｜>", "<｜Assistant｜>", "<think>", "</think>", "｜DSML｜",
    "<tool_result>", "</tool_result>", "<image>",
)  # fmt: skip
_TEXT = """
The quick brown fox jumps over the lazy dog, and the dog, which had been asleep in the shade of the old barn, lifted
its head to see what was the matter. There was nothing the matter; there was only the fox, and the fox had gone. What
is the use of a memory of what was said before, if nobody asks for it? A question is asked and an answer is given. The
answer is not always that which the one who asked had hoped for. In the beginning there were the letters, and then the
words came, and with the words came the sentences: one, two, three, four, five, six, seven, eight, nine and ten. When
there are enough of them they make a page, and then a book. Some people read the book from the end to the beginning.
Others keep it on a shelf, unread, because of its beautiful cover; they say that they shall read it next winter.
"""


def write_tokenizer(folder: Path, vocabulary: int) -> None:
    """Write tokenizer.json and tokenizer_config.json with exactly `vocabulary` ids: the same bytes each time."""
    library = need("tokenizers", "writing a tokenizer")
    tokenizer: Any = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=1,
        special_tokens=[library.AddedToken(text, special=True, normalized=False) for text in SPECIAL],
        initial_alphabet=sorted(library.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([_TEXT], trainer)
    found = tokenizer.get_vocab_size(with_added_tokens=True)
    if found != vocabulary:
        raise ValueError(f"the text has pairs for {found} tokens, and {vocabulary} were asked for")
    with system_errors(folder / "tokenizer.json"):
        tokenizer.save(str(folder / "tokenizer.json"))
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "pad_token": PAD,
        "add_bos_token": True,
        "model_max_length": 4096,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
