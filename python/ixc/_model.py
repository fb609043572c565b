"""Models: text, chats, embeddings, logits, and the stages of compilation."""

from __future__ import annotations

import html
import json
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Union, overload

import numpy as np
from numpy.typing import NDArray

from . import _ixc
from ._errors import UsageError
from ._options import Path, model_path, program, size
from ._stream import Stream

Message = Mapping[str, Any]
"""A message of a chat: `{"role": "user", "content": "Hi"}`."""

Prompt = Union[str, Sequence[int]]
"""A text, or token ids."""


@dataclass(frozen=True)
class ToolCall:
    """Call of a tool that the model requests.

    Attributes:
        id: Name of the call, for the message with its result.
        name: Name of the tool.
        arguments: Arguments by name, or the model's text if it is not a JSON object.
    """

    id: str
    name: str
    arguments: dict[str, Any] | str


@dataclass(frozen=True)
class Usage:
    """Tokens of a request.

    Attributes:
        prompt_tokens: Tokens of the prompt.
        cached_tokens: Tokens of the prompt that were not computed again.
        generated_tokens: Tokens of the answer.
    """

    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int


@dataclass(frozen=True)
class Answer:
    """Answer to a chat. `str(answer)` is its text.

    Attributes:
        content: Text of the answer.
        reasoning: Text that the model wrote before its answer.
        tool_calls: Calls that the model requests.
        finish_reason: `stop`, `length` or `tool_calls`.
        usage: Token counts of the request.
        parsed: Object of the `response_format`: an instance of a pydantic class, or parsed JSON.
            `None` for plain text, for calls, and for an answer that was cut at its limit.
        message: The answer as a message, to be added to the chat.
    """

    content: str
    reasoning: str
    tool_calls: list[ToolCall]
    finish_reason: str
    usage: Usage
    parsed: Any = field(default=None, compare=False)
    message: dict[str, Any] = field(default_factory=dict, compare=False)

    def __str__(self) -> str:
        return self.content


@dataclass(frozen=True)
class Delta:
    """Part of an answer to a chat. `str(delta)` is its text.

    Attributes:
        content: More text of the answer.
        reasoning: More text before the answer.
        tool_calls: Parts of calls, as OpenAI's interface has them.
        finish_reason: Reason of the end, in the last part.
    """

    content: str = ""
    reasoning: str = ""
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    finish_reason: str | None = None

    def __str__(self) -> str:
        return self.content


def _ids(tokens: Sequence[int] | NDArray[Any]) -> list[int]:
    """Returns token ids as a list."""
    ids = [int(token) for token in tokens]
    if not all(0 <= token < 2**32 for token in ids):
        raise UsageError("a token id is negative or above 4294967295")
    return ids


def _schema_of(response_format: Any) -> dict[str, Any]:
    """Returns the field `response_format` for a schema, a pydantic class, or that field itself."""
    if isinstance(response_format, type):
        make = getattr(response_format, "model_json_schema", None)
        if make is None:
            raise UsageError(f"{response_format.__name__} has no model_json_schema; expected a pydantic class")
        response_format = make()
    if not isinstance(response_format, Mapping):
        raise UsageError("response_format must be a JSON schema, a pydantic class, or a response_format of OpenAI")
    if response_format.get("type") in ("text", "json_object", "json_schema"):
        return dict(response_format)
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": dict(response_format)}}


def _parsed(response_format: Any, content: str, finish_reason: str) -> Any:
    """Returns the object of an answer that was not streamed."""
    if response_format is None or finish_reason != "stop":
        return None
    if isinstance(response_format, type):
        return getattr(response_format, "model_validate_json")(content)
    if response_format.get("type") == "text":
        return None
    return json.loads(content)


def _usage(usage: Mapping[str, Any]) -> Usage:
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    return Usage(usage["prompt_tokens"], cached, usage["completion_tokens"])


def _tool_call(call: Mapping[str, Any]) -> ToolCall:
    text = call["function"]["arguments"]
    try:
        arguments = json.loads(text)
    except ValueError:
        arguments = text
    return ToolCall(call["id"], call["function"]["name"], arguments if isinstance(arguments, dict) else text)


def _answer(body: Mapping[str, Any], response_format: Any) -> Answer:
    choice = body["choices"][0]
    message, finish_reason = choice["message"], choice["finish_reason"]
    content = message.get("content") or ""
    return Answer(
        content=content,
        reasoning=message.get("reasoning_content", ""),
        tool_calls=[_tool_call(call) for call in message.get("tool_calls", [])],
        finish_reason=finish_reason,
        usage=_usage(body["usage"]),
        parsed=_parsed(response_format, content, finish_reason),
        message={name: value for name, value in message.items() if name != "refusal"},
    )


def _delta(event: Mapping[str, Any]) -> Delta | None:
    for choice in event["choices"]:
        delta = choice["delta"]
        part = Delta(
            content=delta.get("content") or "",
            reasoning=delta.get("reasoning_content") or "",
            tool_calls=delta.get("tool_calls") or [],
            finish_reason=choice["finish_reason"],
        )
        if part != Delta():
            return part
    return None


def _text(event: Mapping[str, Any]) -> str | None:
    return "".join(choice["text"] for choice in event["choices"]) or None


class Model:
    """A model in memory. Many threads may use it at once.

    Args:
        path: GGUF file, folder of safetensors, or plan of `ixc compile`. Without a path, or with
            `"demo"`, it is the built-in demo model.
        memory: Max memory of the process: bytes, or text such as `"24GiB"`. Experts that do not
            fit are read from the drive when they are needed.
        context: Max tokens of a text with its prompt. The default is the model's, at most 4096.
        threads: Threads that compute. The default is one for each CPU.
        parallel: Requests that are computed at once. Further requests wait.
        target: Target of the kernels, as `ixc doctor` lists them. The default is this machine's.
        model_file: Model file of a plan, if it is not where the plan says.
        embeddings: Whether the model gives vectors in place of text. Encoders always do.
        pooling: `mean`, `cls` or `last`: the vector of a text. The default is the model's.
        chat_template: Name of a known template, such as `chatml`, or a template's source.

    Raises:
        IxcError: The file is missing, malformed or not supported, or this machine cannot run it.
    """

    def __init__(
        self,
        path: Path = None,
        *,
        memory: int | str | None = None,
        context: int | None = None,
        threads: int | None = None,
        parallel: int = 4,
        target: str | None = None,
        model_file: Path = None,
        embeddings: bool | None = None,
        pooling: str | None = None,
        chat_template: str | None = None,
    ) -> None:
        self._path = model_path(path)
        self._compile_options: dict[str, Any] = {"memory": size(memory), "threads": threads, "target": target}
        self._open_options: dict[str, Any] = {
            **self._compile_options,
            "context": context,
            "parallel": parallel,
            "model_file": model_file,
            "pooling": pooling,
            "chat_template": chat_template,
            "program": program(),
        }
        self._host = _ixc.Host.open(self._path, embeddings=embeddings, **self._open_options)
        self._facts: dict[str, Any] = json.loads(self._host.facts())
        # The model that computes vectors. It is loaded at the first call of `embed`.
        self._embedder: _ixc.Host | None = self._host if self._facts["dimensions"] is not None else None
        self._loading = threading.Lock()
        self._closed = False

    # Text

    @overload
    def generate(
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = None,
        schema: Any = None,
        stream: Literal[False] = False,
        **options: Any,
    ) -> str: ...

    @overload
    def generate(
        self,
        prompt: list[str],
        *,
        max_tokens: int | None = None,
        schema: Any = None,
        stream: Literal[False] = False,
        **options: Any,
    ) -> list[str]: ...

    @overload
    def generate(
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = None,
        schema: Any = None,
        stream: Literal[True],
        **options: Any,
    ) -> Stream[str]: ...

    def generate(
        self,
        prompt: Prompt | list[str],
        *,
        max_tokens: int | None = None,
        schema: Any = None,
        stream: bool = False,
        **options: Any,
    ) -> str | list[str] | Stream[str]:
        """Continues a text.

        Args:
            prompt: Text, or token ids. Prompts in a list of texts are computed together.
            max_tokens: Max tokens to generate. By default the model ends the text.
            schema: JSON schema or pydantic class that the generated text follows.
            stream: Whether the text comes in parts, for `for` or `async for`.
            options: Fields of `/v1/completions`, such as `temperature`, `top_p`, `top_k`, `seed`,
                `stop` and `grammar`: see docs/api-fields.md.

        Returns:
            The generated text without the prompt; a list of texts for a list of prompts; or a stream
            of parts.
        """
        fields = self._completion(prompt, max_tokens, schema, options)
        if stream:
            return self._stream_of("completion", fields, _text)
        texts = [choice["text"] for choice in self._post("completion", fields)["choices"]]
        return texts if isinstance(fields["prompt"], list) and isinstance(fields["prompt"][0], str) else texts[0]

    def _completion(
        self, prompt: Prompt | list[str], max_tokens: int | None, schema: Any, options: dict[str, Any]
    ) -> dict[str, Any]:
        if isinstance(prompt, str):
            checked: str | list[str] | list[int] = prompt
        elif isinstance(prompt, list) and prompt and all(isinstance(text, str) for text in prompt):
            checked = [str(text) for text in prompt]
        elif any(isinstance(text, (str, bytes)) for text in prompt):
            raise UsageError("prompt must be a text, token ids, or a list of texts")
        else:
            checked = _ids([token for token in prompt if not isinstance(token, str)])
        if not checked:
            raise UsageError("prompt is empty")
        fields = {"prompt": checked, "max_tokens": self.context if max_tokens is None else max_tokens, **options}
        if schema is not None:
            fields["response_format"] = _schema_of(schema)
        return fields

    # Chats

    @overload
    def chat(
        self,
        messages: str | Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        response_format: Any = None,
        max_tokens: int | None = None,
        stream: Literal[False] = False,
        **options: Any,
    ) -> Answer: ...

    @overload
    def chat(
        self,
        messages: str | Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        response_format: Any = None,
        max_tokens: int | None = None,
        stream: Literal[True],
        **options: Any,
    ) -> Stream[Delta]: ...

    def chat(
        self,
        messages: str | Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: str | Mapping[str, Any] | None = None,
        response_format: Any = None,
        max_tokens: int | None = None,
        stream: bool = False,
        **options: Any,
    ) -> Answer | Stream[Delta]:
        """Answers a chat.

        Args:
            messages: Messages in OpenAI's form, or the text of a user's message.
            tools: Tools that the model may call, in OpenAI's form.
            tool_choice: `auto`, `none`, `required`, or the tool to call.
            response_format: JSON schema or pydantic class of the answer, or OpenAI's field.
            max_tokens: Max tokens to generate. By default the model ends its answer.
            stream: Whether the answer comes in parts, for `for` or `async for`.
            options: Other fields of `/v1/chat/completions`: see docs/api-fields.md.

        Returns:
            The answer, or a stream of its parts.
        """
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        fields: dict[str, Any] = {
            "messages": [dict(message) for message in messages],
            "max_tokens": self.context if max_tokens is None else max_tokens,
            **options,
        }
        if tools is not None:
            fields["tools"] = list(tools)
        if tool_choice is not None:
            fields["tool_choice"] = tool_choice
        if response_format is not None:
            fields["response_format"] = _schema_of(response_format)
        if stream:
            return self._stream_of("chat", fields, _delta)
        return _answer(self._post("chat", fields), response_format)

    def prompt(self, messages: str | Sequence[Message], *, tools: Sequence[Mapping[str, Any]] | None = None) -> str:
        """Returns the text that the chat template makes of messages, without generating an answer.

        Args:
            messages: Messages in OpenAI's form, or the text of a user's message.
            tools: Tools that the model may call, in OpenAI's form.
        """
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        fields: dict[str, Any] = {"messages": [dict(message) for message in messages]}
        if tools is not None:
            fields["tools"] = list(tools)
        return str(self._post("prompt", fields)["prompt"])

    def _post(self, kind: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the body of the answer to a request of OpenAI's interface."""
        body: dict[str, Any] = json.loads(self._host.post(kind, _json(fields)))
        return body

    def _stream_of(self, kind: str, fields: Mapping[str, Any], read: Any) -> Stream[Any]:
        """Returns the events of a streamed answer, each converted by `read`."""
        return Stream(self._host.stream(kind, _json({**fields, "stream": True})), read)

    # Numbers

    def embed(self, texts: str | Sequence[str], *, dimensions: int | None = None) -> NDArray[np.float32]:
        """Computes vectors of texts.

        A text model is loaded a second time for its first vectors, without its output matrix.

        Args:
            texts: One text or several.
            dimensions: Number of elements to keep from the beginning of each vector, for models with
                nested vectors.

        Returns:
            Vectors of length 1, f32 [texts, dimensions].
        """
        texts = [texts] if isinstance(texts, str) else list(texts)
        if not texts:
            raise UsageError("there are no texts")
        return np.asarray(self._vectors().embed(texts, dimensions))

    def _vectors(self) -> _ixc.Host:
        with self._loading:
            if self._closed:
                raise UsageError("the model is closed")
            if self._embedder is None:
                self._embedder = _ixc.Host.open(self._path, embeddings=True, **self._open_options)
            return self._embedder

    def logits(self, tokens: Sequence[int] | NDArray[Any]) -> NDArray[np.float32]:
        """Computes the logits at every position.

        Args:
            tokens: Token ids. No token is added before them.

        Returns:
            Logits, f32 [tokens, vocabulary], in the memory where they were computed. Row `i`
            predicts the token after `tokens[i]`.
        """
        return np.asarray(self._host.logits(_ids(tokens)))

    # Tokens

    def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]:
        """Converts text to token ids.

        Args:
            text: The text.
            add_special: Whether to add the token that the model has before a text.
            parse_special: Whether names of special tokens become these tokens.
        """
        return self._host.encode(text, add_special, parse_special)

    def detokenize(self, tokens: Sequence[int] | NDArray[Any]) -> str:
        """Converts token ids to text. Bytes that are no UTF-8 are replaced."""
        return self._host.decode(_ids(tokens))

    # States

    def save_state(self, path: str | os.PathLike[str], *, slot: int | None = None) -> int:
        """Saves the state of a sequence: its tokens, and the KV cache or other states.

        Args:
            path: File to write. A file that is not a saved state is not replaced.
            slot: Number of the sequence. The default is the one that computed last.

        Returns:
            Number of tokens.
        """
        if slot is None:
            slot = self.stats()["recent_slot"]
        if slot is None:
            raise UsageError("there is no state yet; generate text first")
        return self._host.save(slot, os.path.abspath(path))[0]

    def load_state(self, path: str | os.PathLike[str], *, slot: int | None = None) -> int:
        """Loads a state of `save_state`. If a prompt begins with its tokens, only the rest is computed.

        Args:
            path: File to read.
            slot: Number of the sequence to replace. The default is an idle one.

        Returns:
            Number of tokens.
        """
        if slot is None:
            slots = self.stats()["slots"]
            slot = min(range(len(slots)), key=lambda at: (slots[at]["active"], slots[at]["tokens"]), default=0)
        return self._host.restore(slot, os.path.abspath(path))[0]

    # Compilation

    def compile(
        self,
        path: str | os.PathLike[str],
        *,
        embeddings: bool = False,
        experts: bool = False,
        self_contained: bool = False,
        force: bool = False,
    ) -> int:
        """Compiles the model file to a plan, with this model's target and memory.

        Args:
            path: Plan to write.
            embeddings: Whether the plan is for vectors.
            experts: Whether the plan has only the routed experts, for `MoELayer`.
            self_contained: Whether the plan holds all weights, so that it runs without the model.
            force: Whether a file that is no plan is replaced, too.

        Returns:
            Bytes of the plan.
        """
        return _ixc.compile(
            self._path,
            path,
            embeddings=embeddings,
            experts=experts,
            self_contained=self_contained,
            force=force,
            **self._compile_options,
        )

    def dump(self, stage: str = "fused") -> str:
        """Returns a stage between the model and its machine code as text.

        Args:
            stage: `graph`, `fused`, `plan`, `kernel`, `asm`, or the name of a pass.
        """
        return _ixc.dump(self._path, stage, **self._compile_options)

    # Facts

    @property
    def name(self) -> str:
        """Name of the model file without its extension."""
        return str(self._facts["name"])

    @property
    def architecture(self) -> str:
        """Name of the architecture."""
        return str(self._facts["architecture"])

    @property
    def context(self) -> int:
        """Max tokens of a text with its prompt."""
        return int(self._facts["context"])

    @property
    def vocabulary(self) -> int:
        """Number of tokens in the vocabulary."""
        return int(self._facts["vocabulary"])

    @property
    def bos_token(self) -> int | None:
        """Token for the beginning of a text, if the vocabulary has one."""
        token = self._facts["bos_token"]
        return None if token is None else int(token)

    @property
    def eos_token(self) -> int | None:
        """Token for the end of a text, if the vocabulary has one."""
        token = self._facts["eos_token"]
        return None if token is None else int(token)

    def stats(self) -> dict[str, Any]:
        """Returns counters since the model was loaded, and the state of each sequence.

        Times are in seconds, and sizes in bytes.
        """
        counters: dict[str, Any] = json.loads(self._host.status())
        return counters

    def __repr__(self) -> str:
        return f"ixc.Model({self._path or 'demo'!r})"

    def _repr_html_(self) -> str:
        facts = {
            "model": self._path or "demo",
            "architecture": self.architecture,
            "weights": f"{self._facts['weight_bytes'] / 2**20:,.1f} MiB",
            "vocabulary": f"{self.vocabulary:,} tokens",
            "context": f"{self.context:,} of {self._facts['trained_context']:,} tokens",
            "computed at once": f"{self._facts['parallel']} requests",
        }
        if self._facts["dimensions"] is not None:
            facts["vectors"] = f"{self._facts['dimensions']:,} numbers"
        rows = "".join(f"<tr><th>{name}</th><td>{html.escape(fact)}</td></tr>" for name, fact in facts.items())
        return f"<table>{rows}</table>"

    # End

    def close(self) -> None:
        """Frees the model after its running requests. Later requests fail."""
        with self._loading:
            self._closed = True
            self._host.close()
            if self._embedder is not None:
                self._embedder.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _json(fields: Mapping[str, Any]) -> str:
    try:
        return json.dumps(fields, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"an argument has no JSON form: {error}") from None
