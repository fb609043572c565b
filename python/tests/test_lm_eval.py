"""Tests of the model for lm-eval, with the built-in demo model and made tasks.

They need `pip install -r python/tests/requirements-lm-eval.txt`.
"""

import importlib.util
import json
import math
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import numpy as np

import ixc

CHOICES = """
task: made_choices
output_type: multiple_choice
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: answer
metric_list: [{metric: acc}]
"""
TEXTS = """
task: made_texts
output_type: loglikelihood_rolling
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
doc_to_text: ""
doc_to_target: "{{question}}"
metric_list: [{metric: byte_perplexity}]
"""
ANSWERS = """
task: made_answers
output_type: generate_until
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
doc_to_text: "{{question}}"
doc_to_target: "{{generated}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 8, do_sample: false}
metric_list: [{metric: exact_match}]
"""
QUESTIONS = ["The borrow checker", "A trait is"]


def log_probs(model, tokens):
    """Returns the logarithm of the probability of each token after the first, f64."""
    logits = model.logits(tokens[:-1]).astype(np.float64)
    sums = np.log(np.exp(logits - logits.max(axis=1, keepdims=True)).sum(axis=1)) + logits.max(axis=1)
    return logits[np.arange(len(logits)), tokens[1:]] - sums


@unittest.skipUnless(importlib.util.find_spec("lm_eval"), "lm-eval is not installed")
class LmEvalTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        from ixc.lm_eval import IxcLM

        cls.folder = tempfile.TemporaryDirectory()
        cls.lm = IxcLM(threads=1, batch_size=1)
        cls.model = cls.lm.model
        documents = []
        for question in QUESTIONS:
            generated = cls.model.generate(question, max_tokens=8, temperature=0, stop=["\n"])
            tokens = cls.model.tokenize(generated)
            # The likely continuation is the right one, and comes second.
            choices = [" zebra", cls.model.detokenize(tokens[:1])]
            documents.append({"question": question, "choices": choices, "answer": 1, "generated": generated})
        file = Path(cls.folder.name, "documents.jsonl")
        file.write_text("".join(json.dumps(document) + "\n" for document in documents))
        for name, task in (("choices", CHOICES), ("texts", TEXTS), ("answers", ANSWERS)):
            Path(cls.folder.name, f"{name}.yaml").write_text(task.replace("FILE", str(file)))

    @classmethod
    def tearDownClass(cls):
        cls.model.close()
        cls.folder.cleanup()

    def test_made_tasks_have_the_right_results(self):
        import lm_eval
        from lm_eval.tasks import TaskManager

        os.environ["HF_DATASETS_CACHE"] = str(Path(self.folder.name, "cache"))
        tasks = ["made_choices", "made_texts", "made_answers"]
        manager = TaskManager(include_path=self.folder.name, include_defaults=False)
        results = lm_eval.simple_evaluate(model=self.lm, tasks=tasks, task_manager=manager, bootstrap_iters=0)["results"]
        self.assertEqual(results["made_choices"]["acc,none"], 1.0)
        self.assertEqual(results["made_answers"]["exact_match,none"], 1.0)
        total = sum(log_probs(self.model, [self.lm.prefix_token_id, *self.model.tokenize(text)]).sum() for text in QUESTIONS)
        perplexity = math.exp(-total / sum(len(text.encode()) for text in QUESTIONS))
        self.assertAlmostEqual(results["made_texts"]["byte_perplexity,none"], perplexity, places=9)

    def test_likelihoods_are_those_of_the_logits(self):
        from lm_eval.api.instance import Instance

        pairs = [("A trait is", " a"), ("A trait is", " zebra"), ("", "A trait"), ("The borrow checker ", "is strict")]
        requests = [Instance("loglikelihood", {}, pair, index) for index, pair in enumerate(pairs)]
        for pair, (score, is_greedy) in zip(pairs, self.lm.loglikelihood(requests, disable_tqdm=True)):
            context, continuation = self.lm._encode_pair(*pair) if pair[0] else (
                [self.lm.prefix_token_id], self.model.tokenize(pair[1])
            )
            expected = log_probs(self.model, context + continuation)[-len(continuation) :].sum()
            self.assertAlmostEqual(score, expected, places=9)
            greedy = self.model.logits((context + continuation)[:-1]).argmax(axis=1)[-len(continuation) :]
            self.assertEqual(is_greedy, list(greedy) == continuation)

    def test_a_text_beyond_the_context_is_scored_in_parts(self):
        from lm_eval.api.instance import Instance
        from ixc.lm_eval import IxcLM

        text = "A trait is a set of methods. " * 6
        lm = IxcLM(context=16, threads=1)
        self.addCleanup(lm.model.close)
        self.assertGreater(len(lm.model.tokenize(text)), 32)
        [score] = lm.loglikelihood_rolling([Instance("loglikelihood_rolling", {}, (text,), 0)])
        self.assertTrue(math.isfinite(score) and score < 0)
        with self.assertRaises(ixc.UsageError):
            lm.loglikelihood([Instance("loglikelihood", {}, ("A", text), 0)], disable_tqdm=True)

    def test_chats_have_the_template_of_the_model(self):
        from ixc.lm_eval import IxcLM

        lm = IxcLM(chat_template="chatml", threads=1)
        self.addCleanup(lm.model.close)
        prompt = lm.apply_chat_template([{"role": "user", "content": "Hi"}])
        self.assertEqual(prompt, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")

    def test_the_command_knows_the_model(self):
        command = [sys.executable, "-m", "ixc.lm_eval", "--model", "ixc", "--model_args", "threads=1"]
        command += ["--tasks", "made_choices", "--include_path", self.folder.name]
        done = subprocess.run(command, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"made_choices.*\|acc *\|.*1")


if __name__ == "__main__":
    unittest.main()
