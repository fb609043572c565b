//! Where a kernel's operands come from: its accesses, one by one, through the caches of a CPU that need not be here.
//!
//! Every address of a kernel is affine in loop variables and dims, so that for given dims all accesses are known without running anything.
//! They are walked in order, line by line, through caches of the CPU's sizes and ways. What a line costs that the first level does not
//! have stands in [`ixc_targets::memory`]; it is set against the cycles that the code itself takes, stretch by stretch. A stretch is
//! one run of an innermost loop, or one iteration of any other: inside of it loads go on beside arithmetic, and it takes the larger
//! of both.
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
//! | [`cache`] | caches of a core, and which of them has a line |
//! | [`walk`] | all accesses of a kernel for given dims, in order |
//! | [`start`] | where a buffer lies before the call |
//! | [`spent`] | the time of each loop, and what bounds it |
//! | [`levels`](mod@levels) | what comes out |
//!
//! The call that is counted is the second of two with the same buffers: caches hold what the first left, but for buffers that a
//! [`Start`] puts elsewhere.

pub mod cache;
pub mod levels;
pub mod spent;
pub mod start;
pub mod walk;

pub use levels::{Bounded, Levels, LevelsError, LoopLevels, Traffic, levels};
pub use start::{Start, StartError};
