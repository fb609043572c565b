"""Tests of the classes for other libraries, with the built-in demo model."""

import importlib.util
import unittest

import ixc
from ixc.llama_cpp import Llama

PROMPT = "The borrow checker"


class LlamaTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.llama = Llama(model_path=None, n_threads=1, chat_format="chatml", verbose=False)

    @classmethod
    def tearDownClass(cls):
        cls.llama.close()

    def test_completions_have_the_form_of_openai(self):
        answer = self.llama(PROMPT, max_tokens=6, temperature=0)
        text = answer["choices"][0]["text"]
        self.assertEqual(answer["usage"]["completion_tokens"], 6)
        self.assertEqual(self.llama(PROMPT, max_tokens=6, temperature=0, echo=True)["choices"][0]["text"], PROMPT + text)
        parts = self.llama.create_completion(PROMPT, max_tokens=6, temperature=0, stream=True)
        self.assertEqual("".join(part["choices"][0]["text"] for part in parts), text)

    def test_chats_have_the_form_of_openai(self):
        schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
        answer = self.llama.create_chat_completion(
            [{"role": "user", "content": "Hi"}], response_format={"type": "json_object", "schema": schema}, max_tokens=200, temperature=0
        )
        self.assertIn(answer["choices"][0]["message"]["content"].replace(" ", "").replace("\n", ""), ['{"a":true}', '{"a":false}'])
        parts = list(self.llama.create_chat_completion([{"role": "user", "content": "Hi"}], max_tokens=4, stream=True))
        self.assertEqual(parts[0]["choices"][0]["delta"]["role"], "assistant")

    def test_tokens_and_vectors(self):
        tokens = self.llama.tokenize(PROMPT.encode(), add_bos=False)
        self.assertEqual(self.llama.detokenize(tokens), PROMPT.encode())
        self.assertEqual(len(self.llama.embed(PROMPT)), len(self.llama.create_embedding([PROMPT])["data"][0]["embedding"]))
        self.assertEqual(self.llama.n_ctx(), 512)
        self.assertGreater(self.llama.n_vocab(), 1000)

    def test_unknown_arguments_are_refused(self):
        with self.assertRaises(TypeError):
            self.llama(PROMPT, temprature=1)
        with self.assertRaises(TypeError):
            Llama(model_path=None, n_context=1)


@unittest.skipUnless(importlib.util.find_spec("langchain_core"), "langchain-core is not installed")
class LangChainTest(unittest.TestCase):
    def test_messages_are_answered(self):
        from ixc.langchain import ChatIxc, IxcEmbeddings

        model = ChatIxc(model_options={"chat_template": "chatml", "threads": 1}, options={"temperature": 0, "max_tokens": 6})
        answer = model.invoke("Hi")
        self.assertEqual(answer.usage_metadata["output_tokens"], 6)
        self.assertEqual("".join(chunk.content for chunk in model.stream("Hi")), answer.content)
        tool = {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}}
        called = model.bind_tools([tool], tool_choice="any").invoke("Hi", max_tokens=200)
        self.assertEqual(called.tool_calls[0]["name"], "look")
        self.assertEqual(len(IxcEmbeddings(threads=1).embed_documents(["a", "b"])), 2)


@unittest.skipUnless(importlib.util.find_spec("llm"), "llm is not installed")
class LlmTest(unittest.TestCase):
    def test_prompts_are_answered(self):
        import ixc.llm_plugin

        model = ixc.llm_plugin.Ixc()
        conversation = model.conversation()
        for _ in range(2):
            self.assertTrue(conversation.prompt("Hi", chat_template="chatml", max_tokens=6, temperature=0).text())


if __name__ == "__main__":
    unittest.main()
