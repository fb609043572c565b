//! Prefetching a stream of packed weights.
//!
//! A kernel for few rows reads each byte of a weight once, in order, from memory. Hardware prefetchers stop at the end of a page, so that at each one
//! begins anew what they hide, the latency of memory: some 100 ns, in which a core could have read 4 KiB. So what will be read [`AHEAD`] bytes later is
//! asked for line by line while a sub-block is multiplied. What lies behind an item is the next one, which mostly is the same thread's; at the end
//! of a thread's share a page is read for nothing.
//!
//! Zen 5, 2 threads, tokens per second of decode (Q4_K with Q6_K), three interleaved rounds on a shared machine whose memory gave 50 to 80 GB/s:
//!
//! | bytes ahead | none | 512 | 1024 | 2048 | 4096 |
//! | --- | --- | --- | --- | --- | --- |
//! | dense, 1.1 billion parameters | 57 62 62 | 60 77 75 | 63 83 78 | 66 58 82 | 60 66 86 |
//! | mixture of 64 experts, 8 used | 81 77 82 | 100 100 102 | 105 110 108 | 118 120 115 | 120 122 121 |
//! | the dense one with AVX2 alone | 48 47 45 | | 68 64 60 | | 82 69 66 |
//! | the mixture with AVX2 alone | 60 70 64 | | 92 89 88 | | 81 104 99 |
//!
//! With it, ops of decode read 85 to 91 % of what two threads can read. Where they took all that memory gives without it (Zen 4, Cascade Lake) it made
//! no difference.

use ixc_ir::kernel::{Affine, BufferId, KernelBuilder};

/// How many bytes after those that are read now, where no tuner says otherwise ([`crate::linear::pace`]): a page.
pub const AHEAD: i64 = 4096;
/// Bytes that a prefetch brings.
pub const LINE: i64 = 64;

/// Asks for the lines that come [`AHEAD`] bytes after the `bytes` bytes from `at` on. Where these do not begin with a line, neighbours ask for
/// one twice, which costs a slot of a load.
pub fn prefetch(b: &mut KernelBuilder, buffer: BufferId, at: &Affine, bytes: i64) {
    for line in 0..(bytes + LINE - 1) / LINE {
        b.prefetch(buffer, at.clone() + (AHEAD + line * LINE));
    }
}
