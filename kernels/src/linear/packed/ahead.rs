//! Prefetches for products that read packed weights as a stream.
//!
//! A kernel for few rows reads each byte of a weight once, in order, from memory. Hardware
//! prefetchers stop at the end of a page. After each page, the core waits for the memory latency:
//! about 100 ns, in which it could have read 4 KiB. While a kernel multiplies a sub-block, it
//! therefore prefetches the lines that are [`AHEAD`] bytes later. At the end of an item, these
//! lines belong to the next item, which usually the same thread computes. At the end of a thread's
//! last item, one page is prefetched unnecessarily.
//!
//! Results on Zen 5 with 2 threads: tokens per second of decode (Q4_K with Q6_K) in three
//! interleaved rounds. The machine was shared, and its memory gave 50 to 80 GB/s:
//!
//! | bytes ahead | none | 512 | 1024 | 2048 | 4096 |
//! | --- | --- | --- | --- | --- | --- |
//! | dense, 1.1 billion parameters | 57 62 62 | 60 77 75 | 63 83 78 | 66 58 82 | 60 66 86 |
//! | mixture of 64 experts, 8 used | 81 77 82 | 100 100 102 | 105 110 108 | 118 120 115 | 120 122 121 |
//! | the dense model, AVX2 only | 48 47 45 | | 68 64 60 | | 82 69 66 |
//! | the mixture, AVX2 only | 60 70 64 | | 92 89 88 | | 81 104 99 |
//!
//! With prefetches, ops of decode read at 85 to 91 % of the rate that two threads can reach. On
//! machines where kernels already used all memory bandwidth (Zen 4, Cascade Lake), prefetches made
//! no difference.

use ixc_ir::kernel::{Affine, BufferId, KernelBuilder};

/// Default prefetch distance in bytes: a page. A tuner may change it ([`crate::linear::pace`]).
pub const AHEAD: i64 = 4096;
/// Number of bytes that one prefetch loads: a cache line.
pub const LINE: i64 = 64;

/// Prefetches the lines that are [`AHEAD`] bytes after the `bytes` bytes from `at` on. If these
/// bytes do not begin on a line, neighbouring calls prefetch one line twice, which costs a load
/// slot.
pub fn prefetch(b: &mut KernelBuilder, buffer: BufferId, at: &Affine, bytes: i64) {
    for line in 0..(bytes + LINE - 1) / LINE {
        b.prefetch(buffer, at.clone() + (AHEAD + line * LINE));
    }
}
