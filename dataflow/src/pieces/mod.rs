//! `pieces`: cuts the tasks of a plan until each item fits the memory of a processing element (PE).
//!
//! Input: tasks from the pass `lower`, which are made for threads, and the max sizes in
//! [`Partition`]. Result: smaller tasks, which [`plan`] arranges into the steps of a plan.
//!
//! The resulting plan is an ordinary plan, which every engine can run. It fixes the order of f32
//! additions, so a dataflow machine that keeps this order computes the same bits. Its kernels take
//! one row at a time. The tasks are cut as follows:
//!
//! - Matrix product: columns of [`WeightTile::rows`] weight rows, and dot products of
//!   [`WeightTile::dot`] elements. A product with longer dot products becomes a *chain* of tasks;
//!   each task adds its piece of the dot products to the sum so far.
//! - Gate, up and SwiGLU: two matrix products, then `silu`, `mul` and quantisation.
//! - Matrix product whose results are summed over experts: ranges of about
//!   [`Partition::elements`] weight rows, each with its own task that sums over experts.
//! - Elementwise functions and quantisation: columns of [`Partition::elements`].
//! - Norm of a whole row: pieces of [`Partition::norm`] elements. First each piece's sum of
//!   squares is computed; then each piece is scaled by the sums of all pieces and quantised.
//! - Rotation: single heads. Keys are rotated before they are appended, so that no table is stored
//!   next to the cache.
//! - Attention: parts of [`Partition::positions`] positions, the same for every token. A task
//!   computes as many query heads together as fit; the parts of each head are combined separately.
//!
//! A matrix product may already be several tasks of a few tiles each, as the pass `tile` chose for
//! threads. The first of these tasks is cut as if it were the whole product, and the others are
//! dropped. States other than keys and values are refused.
//!
//! ```text
//! linear %x, @w, _, %r       // @w : q4_k[512, 1024], 16 rows, 512 columns, sums in products
//! linear w:    tokens x 32, gemv_q4_k_r16_a8_super_t16n16k512_add (x[0..512], w, r, y0)
//! linear w 1:  tokens x 32, gemv_q4_k_r16_a8_super_t16n16k512_add (x[512..1024], w, y0, y)
//! ```
//!
//! ```text
//! rms_norm.quantise %x, @n        // f32[T, 1024], pieces of 512
//! rms_norm.quantise n squares:  tokens x 2, sum_squares_n512 (x, s)
//! rms_norm.quantise n:          tokens x 2, rms_norm_piece_a8_super_n512r1024p2 (x, s[0..2], n, y)
//! ```
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`sizes`] | sizes of the pieces |
//! | `cut` | the pass: the choice of how to cut each kernel's tasks, and renumbering of buffers |
//! | `products` | chains, SwiGLU, sums over experts |
//! | `rows` | elementwise functions, quantisation, norms |
//! | `attention` | rotation, keys and values, attention |

mod attention;
mod cut;
mod products;
mod rows;
pub mod sizes;

pub use cut::{plan, run};
pub use sizes::{Partition, Reduction, WeightTile};
