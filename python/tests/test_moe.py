"""Tests of `ixc.MoELayer` with the experts of the built-in demo model."""

import unittest

import numpy as np

import ixc


class Tensor:
    """A tensor of another library, which has only DLPack."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class MoETest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.experts = ixc.MoELayer(threads=1)
        cls.layer = cls.experts.layers[0]
        draw = np.random.default_rng(1)
        cls.rows = draw.standard_normal((3, cls.layer.width), np.float32)
        cls.ids = draw.integers(0, cls.layer.experts, (3, cls.layer.used))
        cls.weights = draw.random((3, cls.layer.used), np.float32)
        cls.sums = cls.experts(cls.rows, cls.ids, cls.weights)

    @classmethod
    def tearDownClass(cls):
        cls.experts.close()

    def test_sums_have_a_row_for_each_row(self):
        self.assertEqual((self.sums.dtype, self.sums.shape), (np.float32, self.rows.shape))
        one = self.experts(self.rows[1], self.ids[1], self.weights[1])
        self.assertEqual(one.tobytes(), self.sums[1].tobytes())

    def test_jobs_run_in_the_background(self):
        jobs = [self.experts.submit(self.rows, self.ids, self.weights) for _ in range(4)]
        self.experts.sync()
        for job in jobs:
            self.assertTrue(job.done())
            self.assertEqual(job.wait().tobytes(), self.sums.tobytes())
            with self.assertRaises(ixc.UsageError):
                job.wait()

    def test_id_minus_one_skips_an_expert(self):
        nobody = np.full_like(self.ids, -1)
        self.assertFalse(self.experts(self.rows, nobody, self.weights).any())
        halves = []
        for half in range(2):
            ids = self.ids.copy()
            ids[:, half::2] = -1
            halves.append(self.experts(self.rows, ids, self.weights))
        np.testing.assert_allclose(halves[0] + halves[1], self.sums, rtol=1e-3, atol=1e-4)

    def test_tensors_come_through_dlpack(self):
        sums = self.experts(Tensor(self.rows), Tensor(self.ids), Tensor(self.weights))
        self.assertEqual(sums.tobytes(), self.sums.tobytes())
        turned = self.rows.T.copy().T
        self.assertEqual(self.experts(turned, self.ids, self.weights).tobytes(), self.sums.tobytes())

    def test_rows_may_change_after_submit(self):
        rows, ids = self.rows.copy(), self.ids.astype(np.int32)
        job = self.experts.submit(rows, ids, self.weights)
        rows[:], ids[:] = 0, -1
        self.assertEqual(job.wait().tobytes(), self.sums.tobytes())

    def test_wrong_tensors_are_exceptions(self):
        rows, ids, weights = self.rows, self.ids, self.weights
        wrong = [
            (rows[:, 1:], ids, weights),
            (rows, ids[:2], weights),
            (rows, ids, weights[:, :1]),
            (rows, ids.astype(float), weights),
            (rows.astype(int), ids, weights),
            (rows, ids + self.layer.experts, weights),
            (rows, ids - 2**40, weights),
            ("x", ids, weights),
            (None, ids, weights),
            (rows[None], ids, weights),
        ]
        for arguments in wrong:
            with self.assertRaises(ixc.IxcError):
                self.experts(*arguments)
        with self.assertRaises(ixc.UsageError):
            self.experts.submit(rows, ids, weights, layer=99)
        with self.assertRaises(ixc.UsageError):
            ixc.MoELayer(layer=99)


class TorchTest(unittest.TestCase):
    def test_torch_tensors_give_torch_tensors(self):
        try:
            import torch
        except ImportError:
            self.skipTest("torch is not installed")
        with ixc.MoELayer(threads=1) as experts:
            layer = experts.layers[0]
            rows = torch.randn(3, layer.width)
            ids = torch.randint(0, layer.experts, (3, layer.used))
            weights = torch.rand(3, layer.used)
            sums = experts(rows, ids, weights)
            self.assertIsInstance(sums, torch.Tensor)
            rounded = experts(rows.bfloat16(), ids, weights)
            torch.testing.assert_close(sums, rounded, rtol=0.1, atol=0.1)


if __name__ == "__main__":
    unittest.main()
