//! Caches: the accesses of a kernel, simulated one by one with the caches of any CPU.
//!
//! Every address of a kernel is affine in loop variables and dims. For given dims, all accesses are
//! therefore known without running the kernel. The walk simulates them in order, line by line, with
//! the sizes and ways of the CPU's caches. [`ixc_targets::memory`] has the cost of a line that is
//! not in the first level.
//!
//! The cost of lines is compared with the cycles of the code, stretch by stretch. A *stretch* is
//! one run of an innermost loop, or one iteration of any other loop. Within a stretch, loads run in
//! parallel with arithmetic, so a stretch takes the larger of the two times.
//!
//! ```text
//! for %k in 0..64 {
//!   %a = tile_load tile<16x32xbf16> %x[64*%k], 7168      16 lines in 4 sets of 64
//!   %b = tile_load tile<16x32xbf16> %w[1024*%k], 64      16 lines in 16 sets
//! }
//! ```
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`cache`] | caches of a core, and the lines in them |
//! | [`walk`] | all accesses of a kernel for given dims, in order |
//! | [`start`] | level of a buffer before the call |
//! | [`spent`] | time of each loop, and its bound |
//! | [`levels`](mod@levels) | the results |
//!
//! Two calls with the same buffers are simulated, and the second one is counted. At its start, the
//! caches contain the lines of the first call, except for buffers that a [`Start`] moves.

pub mod cache;
pub mod levels;
pub mod spent;
pub mod start;
pub mod walk;

pub use levels::{LevelBound, Levels, LevelsError, LoopLevels, Traffic, levels};
pub use start::{Start, StartError};
