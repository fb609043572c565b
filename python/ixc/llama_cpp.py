"""The most used part of llama-cpp-python's class `Llama`, with ixc as its engine.

>>> from ixc.llama_cpp import Llama
>>> llama = Llama(model_path="model.gguf", n_ctx=4096)
>>> llama("Q: What is a trait? A:", max_tokens=32, stop=["Q:"])["choices"][0]["text"]

Arguments have the same names and defaults. Arguments that affect only how an answer is computed have
no effect. Unknown arguments are errors.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Union

from ._errors import UsageError
from ._model import Model

Completion = dict[str, Any]
"""An answer in the form of OpenAI's interface."""

_IGNORED = {"n_batch", "n_ubatch", "n_gpu_layers", "use_mmap", "use_mlock", "verbose", "flash_attn", "n_threads_batch"}
"""Arguments of `Llama` that affect only how an answer is computed, not its content."""

_RENAMED = {
    "frequency_penalty": "frequency_penalty",
    "logit_bias": "logit_bias",
    "logprobs": "logprobs",
    "min_p": "min_p",
    "mirostat_eta": "mirostat_eta",
    "mirostat_mode": "mirostat",
    "mirostat_tau": "mirostat_tau",
    "presence_penalty": "presence_penalty",
    "repeat_penalty": "repeat_penalty",
    "response_format": "response_format",
    "seed": "seed",
    "stop": "stop",
    "temperature": "temperature",
    "tool_choice": "tool_choice",
    "tools": "tools",
    "top_k": "top_k",
    "top_logprobs": "top_logprobs",
    "top_p": "top_p",
    "typical_p": "typical_p",
}
"""Arguments of requests, and the fields of ixc."""


class Llama:
    """A model with the methods of llama-cpp-python.

    Args:
        model_path: Model file.
        n_ctx: Max tokens of a text with its prompt; 0 for the model's context.
        n_threads: Threads that compute.
        seed: Default seed of requests.
        embedding: Whether the model gives vectors in place of text.
        chat_format: Name of a known chat template, such as `chatml`.
        chat_template: Source of a chat template.
    """

    def __init__(
        self,
        model_path: str | os.PathLike[str] | None,
        *,
        n_ctx: int = 512,
        n_threads: int | None = None,
        seed: int | None = None,
        embedding: bool = False,
        chat_format: str | None = None,
        chat_template: str | None = None,
        **ignored: Any,
    ) -> None:
        _check(ignored, _IGNORED)
        self.model_path = model_path
        self._seed = seed
        self._model = Model(
            model_path,
            context=n_ctx or None,
            threads=n_threads,
            embeddings=True if embedding else None,
            chat_template=chat_template or chat_format,
        )

    def _fields(self, options: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
        _check(options, _RENAMED)
        fields = {**defaults, **{_RENAMED[name]: value for name, value in options.items() if value is not None}}
        if self._seed is not None:
            fields.setdefault("seed", self._seed)
        return fields

    def create_completion(
        self,
        prompt: Union[str, Sequence[int]],
        *,
        max_tokens: int | None = 16,
        echo: bool = False,
        stream: bool = False,
        **options: Any,
    ) -> Any:
        """Continues a text; returns the answer, or an iterator over its parts."""
        defaults = {"temperature": 0.8, "top_p": 0.95, "top_k": 40, "min_p": 0.05}
        fields = self._fields(options, defaults)
        fields["prompt"] = prompt if isinstance(prompt, str) else list(prompt)
        fields["max_tokens"] = self._limit(max_tokens)
        if stream:
            if echo:
                raise UsageError("echo and stream: only one is supported")
            return self._parts("completion", fields)
        answer = self._model._post("completion", fields)
        if echo:
            text = prompt if isinstance(prompt, str) else self._model.detokenize(list(prompt))
            for choice in answer["choices"]:
                choice["text"] = text + choice["text"]
        return answer

    def __call__(self, prompt: str, **options: Any) -> Any:
        """Continues a text: see `create_completion`."""
        return self.create_completion(prompt, **options)

    def create_chat_completion(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        max_tokens: int | None = None,
        stream: bool = False,
        logprobs: bool | None = None,
        **options: Any,
    ) -> Any:
        """Answers a chat; returns the answer, or an iterator over its parts."""
        defaults = {"temperature": 0.2, "top_p": 0.95, "top_k": 40, "min_p": 0.05}
        fields = self._fields({**options, "logprobs": logprobs}, defaults)
        fields["messages"] = [dict(message) for message in messages]
        fields["max_tokens"] = self._limit(max_tokens)
        if isinstance(fields.get("response_format"), Mapping) and "schema" in fields["response_format"]:
            schema = fields["response_format"]["schema"]
            fields["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        return self._parts("chat", fields) if stream else self._model._post("chat", fields)

    def _limit(self, max_tokens: int | None) -> int:
        # llama-cpp-python has no limit for None, 0 and negative numbers.
        return self._model.context if max_tokens is None or max_tokens <= 0 else max_tokens

    def _parts(self, kind: str, fields: Mapping[str, Any]) -> Iterator[Completion]:
        parts: Iterator[Completion] = self._model._stream_of(kind, fields, lambda event: event)
        return parts

    def embed(self, input: Union[str, Sequence[str]]) -> Any:
        """Returns the vector of a text, or the vectors of texts."""
        vectors = self._model.embed(input).tolist()
        return vectors[0] if isinstance(input, str) else vectors

    def create_embedding(self, input: Union[str, Sequence[str]], model: str | None = None) -> dict[str, Any]:
        """Returns the vectors of texts in the form of OpenAI's interface."""
        texts = [input] if isinstance(input, str) else list(input)
        count = sum(len(self._model.tokenize(text)) for text in texts)
        data = [
            {"object": "embedding", "embedding": vector, "index": index}
            for index, vector in enumerate(self._model.embed(texts).tolist())
        ]
        usage = {"prompt_tokens": count, "total_tokens": count}
        return {"object": "list", "data": data, "model": model or self._model.name, "usage": usage}

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """Converts UTF-8 to token ids."""
        return self._model.tokenize(text.decode(), add_special=add_bos, parse_special=special)

    def detokenize(self, tokens: Sequence[int]) -> bytes:
        """Converts token ids to UTF-8."""
        return self._model.detokenize(list(tokens)).encode()

    def n_ctx(self) -> int:
        """Returns the max tokens of a text with its prompt."""
        return self._model.context

    def n_vocab(self) -> int:
        """Returns the number of tokens in the vocabulary."""
        return self._model.vocabulary

    def close(self) -> None:
        """Frees the model."""
        self._model.close()

    def __enter__(self) -> Llama:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _check(options: Mapping[str, Any], known: Mapping[str, Any] | set[str]) -> None:
    for name in options:
        if name not in known:
            raise TypeError(f"there is no argument {name!r}; arguments are {', '.join(sorted(known))}")
