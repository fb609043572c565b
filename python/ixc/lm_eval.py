"""Model for the evaluation harness `lm-eval`: `pip install 'ixc[lm-eval]'`.

    python -m ixc.lm_eval --model ixc --model_args path=model.gguf --tasks hellaswag

>>> import lm_eval
>>> from ixc.lm_eval import IxcLM
>>> lm_eval.simple_evaluate(model=IxcLM("model.gguf"), tasks=["hellaswag"])
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Optional

import numpy as np
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from ._errors import UsageError
from ._model import Model

_MAX_TOKENS_NAMES = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""Names that tasks use for the max tokens of an answer. The first that is present counts."""

_MAX_TOKENS = 256
"""Max tokens of an answer if its task states none, as for other models of `lm-eval`."""

_SCORED_ROWS = 64
"""Rows of logits that are computed in f64 at once, which bounds the memory."""

_SAMPLING = ("temperature", "top_p", "top_k", "min_p", "seed")
"""Options of a task that are fields of a request."""


@register_model("ixc")
class IxcLM(TemplateLM):  # type: ignore[misc]
    """Model of `lm-eval`.

    Args:
        path: Model file. By default it is the built-in demo model.
        context: Max tokens of a text with its prompt. The default is the model's, at most 4096.
        parallel: Texts that are generated at once.
        model_options: Other arguments of `ixc.Model`, such as `memory` and `threads`. The harness
            adds its own arguments `batch_size`, `max_batch_size` and `device`, which have no effect.
    """

    def __init__(
        self, path: Optional[str] = None, *, context: int | None = None, parallel: int = 4, **model_options: Any
    ) -> None:
        super().__init__()
        for name in ("batch_size", "max_batch_size", "device"):
            model_options.pop(name, None)
        self._parallel = parallel
        self.model = Model(path, context=context, parallel=parallel, **model_options)

    # Tokens

    @property
    def eot_token_id(self) -> int:
        """Token that ends a text."""
        token = self.model.eos_token
        if token is None:
            raise UsageError("the vocabulary has no token for the end of a text")
        return token

    @property
    def prefix_token_id(self) -> int:
        """Token before a text without a context."""
        token = self.model.bos_token
        return self.eot_token_id if token is None else token

    @property
    def max_length(self) -> int:
        """Max tokens of a text."""
        return self.model.context

    @property
    def tokenizer_name(self) -> str:
        """Name under which the harness stores prepared requests."""
        return self.model.name.replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_options: Any) -> list[int]:
        """Converts text to token ids. By default they begin with the token that the model needs there."""
        tokens = self.model.tokenize(string)
        if add_special_tokens is False:
            return tokens
        first = self.model.tokenize("", add_special=True)
        # A chat template may have written the first token already.
        return tokens if add_special_tokens is None and tokens[: len(first)] == first else first + tokens

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Returns the prompt of a chat."""
        if not add_generation_prompt:
            raise NotImplementedError("ixc renders a chat only with the beginning of its answer")
        return self.model.prompt(chat_history)

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """Returns a text that identifies the template, which is the model's own."""
        return self.model.name if chat_template else None

    # Likelihoods

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], **_options: Any
    ) -> list[tuple[float, bool]]:
        answers: list[tuple[float, bool]] = [(0.0, True)] * len(requests)
        prepared = [self._input(context, continuation) for _, context, continuation in requests]
        logits, known = np.empty((0, 0), np.float32), None
        # Answers of one token to the same question have the same input. Its logits are computed
        # once.
        for at in sorted(range(len(requests)), key=lambda at: prepared[at]):
            text, _, continuation = requests[at]
            if continuation:
                if prepared[at] != known:
                    logits, known = self.model.logits(prepared[at]), prepared[at]
                answers[at] = _score(logits, continuation)
            if text is not None:
                self.cache_hook.add_partial("loglikelihood", text, answers[at])
        return answers

    def _input(self, context: list[int], continuation: list[int]) -> list[int]:
        """Returns the last tokens that fit into the context, without the last one, which predicts nothing."""
        if len(continuation) > self.max_length:
            raise UsageError(
                f"a continuation has {len(continuation)} tokens, and the context has {self.max_length}; "
                "pass a larger context"
            )
        return (context + continuation)[-self.max_length - 1 : -1]

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Returns the log-likelihood of whole texts. A text beyond the context is cut into parts."""
        sums = []
        for (text,) in (request.args for request in requests):
            windows = get_rolling_token_windows(
                self.tok_encode(text, add_special_tokens=False), self.prefix_token_id, self.max_length, 1
            )
            parts = [(None, *make_disjoint_window(window)) for window in windows]
            sums.append(sum(score for score, _ in self._loglikelihood_tokens(parts)))
            self.cache_hook.add_partial("loglikelihood_rolling", (text,), sums[-1])
        return sums

    # Answers

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Generates a text for each request, up to one of its stop strings."""
        with ThreadPoolExecutor(self._parallel) as pool:
            return list(pool.map(lambda request: self._generate(*request.args), requests))

    def _generate(self, context: str, options: dict[str, Any]) -> str:
        stated = (options[name] for name in _MAX_TOKENS_NAMES if options.get(name) is not None)
        max_tokens = min(int(next(stated, _MAX_TOKENS)), self.max_length - 1)
        # The last tokens of the prompt, so that the answer still fits into the context.
        prompt = self.tok_encode(context)[-(self.max_length - max_tokens) :]
        until = options.get("until") or []
        stops = [until] if isinstance(until, str) else until
        fields: dict[str, Any] = {"stop": [text for text in stops if text]}
        fields.update({name: options[name] for name in _SAMPLING if options.get(name) is not None})
        if not options.get("do_sample", fields.get("temperature", 0) > 0):
            fields["temperature"] = 0
        answer: str = self.model.generate(prompt, max_tokens=max_tokens, **fields)
        self.cache_hook.add_partial("generate_until", (context, options), answer)
        return answer


def _score(logits: np.ndarray[Any, np.dtype[np.float32]], continuation: Sequence[int]) -> tuple[float, bool]:
    """Returns the log-likelihood of the last tokens, and whether each is the most likely one."""
    last = logits[-len(continuation) :]
    score, is_greedy = 0.0, True
    for begin in range(0, len(last), _SCORED_ROWS):
        rows = last[begin : begin + _SCORED_ROWS].astype(np.float64)
        tokens = list(continuation[begin : begin + _SCORED_ROWS])
        rows -= rows.max(axis=1, keepdims=True)
        score += float((rows[np.arange(len(rows)), tokens] - np.log(np.exp(rows).sum(axis=1))).sum())
        is_greedy = is_greedy and bool((rows.argmax(axis=1) == tokens).all())
    return score, is_greedy


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    sys.exit(cli_evaluate())
