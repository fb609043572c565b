"""Tests of `ixc.Model` with the built-in demo model."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

import ixc

PROGRAM = os.environ.get("IXC_PROGRAM", "")
GREEDY = {"temperature": 0}
PROMPT = "The borrow checker"
SCHEMA = {
    "type": "object",
    "properties": {"yes": {"type": "boolean"}},
    "required": ["yes"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}


class ModelTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = ixc.Model(chat_template="chatml", threads=1)

    @classmethod
    def tearDownClass(cls):
        cls.model.close()


class TextTest(ModelTest):
    def test_text_is_the_same_whole_and_in_parts(self):
        whole = self.model.generate(PROMPT, max_tokens=12, **GREEDY)
        parts = list(self.model.generate(PROMPT, max_tokens=12, stream=True, **GREEDY))
        self.assertTrue(whole)
        self.assertGreater(len(parts), 1)
        self.assertEqual("".join(parts), whole)

        async def collect():
            return [part async for part in self.model.generate(PROMPT, max_tokens=12, stream=True, **GREEDY)]

        self.assertEqual("".join(asyncio.run(collect())), whole)

    def test_prompts_are_texts_tokens_or_a_list(self):
        tokens = self.model.tokenize(PROMPT, add_special=True)
        expected = self.model.generate(PROMPT, max_tokens=6, **GREEDY)
        self.assertEqual(self.model.generate(tokens, max_tokens=6, **GREEDY), expected)
        self.assertEqual(self.model.generate([PROMPT, PROMPT], max_tokens=6, **GREEDY), [expected, expected])

    def test_many_streams_run_in_one_loop(self):
        async def collect(prompt):
            return "".join([part async for part in self.model.generate(prompt, max_tokens=6, stream=True, **GREEDY)])

        async def collect_all(prompts):
            return await asyncio.gather(*map(collect, prompts))

        prompts = [f"{PROMPT} {number}" for number in range(8)]
        texts = asyncio.run(collect_all(prompts))
        self.assertEqual(texts, [self.model.generate(prompt, max_tokens=6, **GREEDY) for prompt in prompts])

    def test_threads_share_a_model(self):
        prompts = [f"{PROMPT} {number}" for number in range(4)] * 4
        one_by_one = [self.model.generate(prompt, max_tokens=8, **GREEDY) for prompt in prompts]
        with ThreadPoolExecutor(4) as threads:
            together = list(threads.map(lambda prompt: self.model.generate(prompt, max_tokens=8, **GREEDY), prompts))
        self.assertEqual(together, one_by_one)

    def test_closed_streams_cancel_their_answers(self):
        cancelled = self.model.stats()["cancelled"]
        with self.model.generate(PROMPT, ignore_eos=True, stream=True) as parts:
            next(parts)
        self.assertIsNone(next(parts, None))
        for _ in range(200):
            if self.model.stats()["cancelled"] > cancelled:
                return
            time.sleep(0.05)
        self.fail("the answer goes on")

    def test_schemas_shape_the_text(self):
        text = self.model.generate(PROMPT, schema=SCHEMA, max_tokens=200, **GREEDY)
        self.assertIsInstance(json.loads(text)["yes"], bool)


class ChatTest(ModelTest):
    def test_answers_have_text_and_usage(self):
        answer = self.model.chat([{"role": "user", "content": "Hi"}], max_tokens=8, **GREEDY)
        self.assertEqual(answer.usage.generated_tokens, 8)
        self.assertEqual(answer.finish_reason, "length")
        self.assertEqual(answer.message["role"], "assistant")
        deltas = list(self.model.chat("Hi", max_tokens=8, stream=True, **GREEDY))
        self.assertEqual("".join(map(str, deltas)), str(answer))
        self.assertEqual(deltas[-1].finish_reason, "length")

    def test_prompts_of_chats_are_those_of_the_template(self):
        prompt = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        self.assertEqual(self.model.prompt("Hi"), prompt)
        self.assertEqual(self.model.prompt([{"role": "user", "content": "Hi"}]), prompt)
        answer = self.model.chat("Hi", max_tokens=6, **GREEDY)
        self.assertEqual(self.model.generate(prompt, max_tokens=6, **GREEDY), answer.content)

    def test_response_formats_are_schemas_or_classes(self):
        answer = self.model.chat("Hi", response_format=SCHEMA, max_tokens=200, **GREEDY)
        self.assertIsInstance(answer.parsed["yes"], bool)

        class Reply:
            """Has the methods of a pydantic class."""

            @classmethod
            def model_json_schema(cls):
                return SCHEMA

            @classmethod
            def model_validate_json(cls, text):
                return ("reply", json.loads(text))

        self.assertEqual(self.model.chat("Hi", response_format=Reply, max_tokens=200, **GREEDY).parsed[0], "reply")

    def test_required_tools_are_called(self):
        answer = self.model.chat("Hi", tools=[TOOL], tool_choice="required", parallel_tool_calls=False, max_tokens=200)
        self.assertEqual(answer.finish_reason, "tool_calls")
        self.assertEqual(answer.tool_calls[0].name, "look")
        self.assertIsInstance(answer.tool_calls[0].arguments["yes"], bool)
        chat = [
            {"role": "user", "content": "Hi"},
            answer.message,
            {"role": "tool", "tool_call_id": answer.tool_calls[0].id, "content": "done"},
        ]
        self.assertTrue(self.model.chat(chat, tools=[TOOL], max_tokens=4).usage.prompt_tokens)


class NumberTest(ModelTest):
    def test_logits_are_those_of_the_program(self):
        tokens = self.model.tokenize(PROMPT * 20)
        logits = self.model.logits(tokens)
        self.assertEqual((logits.dtype, logits.shape), (np.float32, (len(tokens), self.model.vocabulary)))
        self.assertFalse(logits.flags.owndata)
        if not os.path.exists(PROGRAM):
            self.skipTest("there is no program to compare with")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "logits.npy")
            ids = ",".join(map(str, tokens))
            subprocess.run([PROGRAM, "logits", "--tokens", ids, "-o", path], check=True)
            expected = np.load(path)
        self.assertEqual(logits.tobytes(), expected.tobytes())

    def test_logits_outlive_the_model(self):
        with ixc.Model(threads=1) as model:
            tokens = model.tokenize(PROMPT)
            logits = model.logits(tokens)
            again = model.logits(tokens)
        self.assertTrue((logits == again).all())
        logits[0, 0] = 1

    def test_vectors_have_length_one(self):
        vectors = self.model.embed([PROMPT, "A trait"])
        self.assertEqual(vectors.shape[0], 2)
        self.assertTrue(np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5))
        self.assertTrue((self.model.embed(PROMPT)[0] == vectors[0]).all())
        short = self.model.embed(PROMPT, dimensions=4)
        self.assertEqual(short.shape, (1, 4))

    def test_the_vocabulary_has_a_token_for_the_end(self):
        # The demo model has no token for the beginning, so none is added.
        self.assertIsNone(self.model.bos_token)
        self.assertEqual(self.model.tokenize("", add_special=True), [])
        self.assertEqual(self.model.eos_token, 2)

    def test_tokens_are_converted_both_ways(self):
        tokens = self.model.tokenize(PROMPT)
        self.assertEqual(self.model.detokenize(tokens), PROMPT)
        self.assertEqual(self.model.detokenize(np.array(tokens)), PROMPT)


class StateTest(unittest.TestCase):
    def test_states_are_saved_and_loaded(self):
        # On some processors a prompt is reused in whole chunks, so this prompt has several chunks.
        prompt = " ".join([PROMPT] * 12)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "state")
            with ixc.Model(threads=1) as model:
                with self.assertRaises(ixc.UsageError):
                    model.save_state(path)
                expected = model.generate(prompt, max_tokens=8, **GREEDY)
                saved = model.save_state(path)
            with ixc.Model(threads=1) as model:
                self.assertEqual(model.load_state(path), saved)
                self.assertEqual(model.generate(prompt, max_tokens=8, **GREEDY), expected)
                self.assertGreater(model.stats()["reused_tokens"], 0)
                with self.assertRaises(ixc.IxcError):
                    model.load_state(__file__)
                with self.assertRaises(ixc.IxcError):
                    model.save_state(__file__)

    def test_plans_are_compiled_and_run(self):
        with tempfile.TemporaryDirectory() as folder, ixc.Model(threads=1) as model:
            plan = Path(folder, "demo.ixp")
            self.assertEqual(model.compile(plan), plan.stat().st_size)
            with ixc.Model(plan, threads=1) as compiled:
                texts = [each.generate(PROMPT, max_tokens=8, **GREEDY) for each in (model, compiled)]
            self.assertEqual(texts[0], texts[1])
            other = Path(folder, "other")
            other.write_text("text")
            with self.assertRaises(ixc.IxcError):
                model.compile(other)
            self.assertGreater(model.compile(other, force=True), 4)

    def test_stages_are_texts(self):
        with ixc.Model(threads=1) as model:
            for stage in ["graph", "fused", "plan", "kernel", "asm", "lower"]:
                self.assertTrue(model.dump(stage), stage)
            with self.assertRaises(ixc.IxcError):
                model.dump("nothing")
            if os.path.exists(PROGRAM):
                for stage in ["graph", "fused", "plan"]:
                    expected = subprocess.run([PROGRAM, "dump", "--stage", stage], check=True, capture_output=True)
                    self.assertEqual(model.dump(stage), expected.stdout.decode(), stage)

    def test_models_are_described(self):
        model = ixc.Model(threads=1)
        self.assertEqual(repr(model), "ixc.Model('demo')")
        self.assertIn("<table>", model._repr_html_())
        self.assertIn("vocabulary", model._repr_html_())
        self.assertEqual(model.stats()["active"], 0)
        model.close()
        model.close()
        with self.assertRaises(ixc.UsageError):
            model.generate(PROMPT)
        with self.assertRaises(ixc.UsageError):
            model.embed(PROMPT)


class ErrorTest(ModelTest):
    def test_wrong_arguments_are_exceptions(self):
        model = self.model
        deep = []
        for _ in range(500):
            deep = [deep]
        wrong = [
            lambda: model.generate(""),
            lambda: model.generate([]),
            lambda: model.generate([1, "x"]),
            lambda: model.generate([-1]),
            lambda: model.generate([2**32 - 1]),
            lambda: model.generate([2**70]),
            lambda: model.generate(PROMPT, max_tokens="x"),
            lambda: model.generate(PROMPT, temperature=float("nan")),
            lambda: model.generate(PROMPT, temprature=1),
            lambda: model.generate(PROMPT, stop=deep),
            lambda: model.generate(PROMPT, schema=3),
            lambda: model.generate(PROMPT, grammar="root ::= ("),
            lambda: model.generate("x " * 100_000),
            lambda: model.chat([]),
            lambda: model.chat([{"role": "user"}], tools=[{}]),
            lambda: model.chat("Hi", response_format=int),
            lambda: model.chat("Hi", tool_choice="required"),
            lambda: model.logits([]),
            lambda: model.logits([2**31]),
            lambda: model.logits([0] * 100_000),
            lambda: model.embed([]),
            lambda: model.embed([""]),
            lambda: model.embed("x", dimensions=0),
            lambda: model.embed("x", dimensions=10**6),
            lambda: model.detokenize([2**32 - 1]),
            lambda: model.save_state("/nowhere/state", slot=99),
            lambda: model.load_state("/nowhere/state"),
            lambda: ixc.Model(memory="much"),
            lambda: ixc.Model(memory=-1),
            lambda: ixc.Model(target="pdp11"),
            lambda: ixc.Model(pooling="all"),
            lambda: ixc.Model(chat_template="{% if").chat("Hi"),
            lambda: ixc.Model(__file__),
            lambda: ixc.Model(parallel=2**31),
            lambda: ixc.Model(threads=0),
        ]
        for number, call in enumerate(wrong):
            with self.subTest(number=number), self.assertRaises((ixc.IxcError, OverflowError, TypeError)) as caught:
                call()
            self.assertTrue(str(caught.exception))
        for call in [lambda: model.generate(None), lambda: model.tokenize(3), lambda: model.logits("x"), lambda: ixc.Model(3)]:
            with self.assertRaises((TypeError, ValueError)):
                call()
        self.assertTrue(model.generate(PROMPT, max_tokens=2))

    def test_missing_files_have_their_own_class(self):
        with self.assertRaises(FileNotFoundError) as caught:
            ixc.Model("/nowhere/model.gguf")
        self.assertIsInstance(caught.exception, ixc.NoInputError)
        self.assertEqual(caught.exception.code, "no_input")

    def test_ctrl_c_stops_a_text(self):
        # Shells let processes in the background ignore the signal.
        previous = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, previous)
        timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
        timer.start()
        with self.assertRaises(KeyboardInterrupt):
            while True:
                self.model.generate(PROMPT, ignore_eos=True)
        timer.join()
        self.assertTrue(self.model.generate(PROMPT, max_tokens=2))

    def test_other_threads_run_during_a_text(self):
        done = threading.Event()
        turns = 0

        def generate():
            self.model.generate(PROMPT, max_tokens=200, ignore_eos=True)
            done.set()

        thread = threading.Thread(target=generate)
        thread.start()
        while not done.wait(0.001):
            turns += 1
        thread.join()
        self.assertGreater(turns, 10)


@unittest.skipUnless(os.environ.get("IXC_LONG"), "IXC_LONG=1 runs long tests")
class MemoryTest(unittest.TestCase):
    def resident(self):
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def test_generations_keep_no_memory(self):
        with ixc.Model(threads=1) as model:
            for number in range(1000):
                if number == 100:
                    before = self.resident()
                model.generate(f"{PROMPT} {number % 7}", max_tokens=4)
            self.assertLess(self.resident() - before, 8 << 20)

    def test_loads_keep_no_memory(self):
        for number in range(1000):
            if number == 100:
                before = self.resident()
            with ixc.Model(threads=1) as model:
                model.generate(PROMPT, max_tokens=1)
        self.assertLess(self.resident() - before, 32 << 20)


if __name__ == "__main__":
    sys.exit(unittest.main())
