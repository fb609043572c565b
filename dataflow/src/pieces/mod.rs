//! `pieces`: cuts the tasks of a plan until no task's item needs more memory than a processing element (PE) has.
//!
//! Needs: tasks as the pass `lower` leaves them, which are made for threads; how large the [`Partition`] may be. Leaves: tasks for [`plan`] to
//! put in steps. A plan of them is a plan like any other, and every engine runs it: it says which f32 are added in which order, and a
//! dataflow machine that keeps to it has its bits. Its kernels take one row at a time. What is cut:
//!
//! | task | into |
//! | --- | --- |
//! | a product | columns of [`WeightTile::rows`] weight rows, and dot products of [`WeightTile::dot`] elements: a *chain* of tasks, each of which adds its piece to the sum so far |
//! | gate, up and SwiGLU | two products, `silu`, `mul`, quantisation |
//! | a product that is summed over experts | ranges of weight rows, each of about [`Partition::elements`] and summed by a task of its own |
//! | elementwise functions, quantisation | columns of [`Partition::elements`] |
//! | a norm of a whole row | pieces of [`Partition::norm`]: sums of squares, then what is scaled by all of them and quantised |
//! | rotation | heads; keys are rotated before they are appended, so that no table lies beside the cache |
//! | attention | parts of [`Partition::positions`], the same for every token; as many query heads together as there is room for; each head's parts are combined apart |
//!
//! A weight's products are tasks of some tiles each, as `tile` chose them for threads: the first stands for all of them, and the others are
//! dropped. What has a state other than keys and values is refused.
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
//! | [`sizes`] | how large the pieces are |
//! | `cut` | the pass: which kernel's tasks are cut how, buffers as they become |
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
