//! Attention over the KV cache.
//!
//! | module | contents |
//! | --- | --- |
//! | [`whole`] | rows over all positions |
//! | [`part`], [`combine`] | one row over a part of the positions, and combination of the parts |
//! | [`window`] | rows over their last positions |
//! | [`entries`] | a row over its last positions and entries |
//! | [`tiles`] | many rows, by tile products |
//! | [`candidates`] | all kernels in order of preference |
//! | [`request`] | requests, and reasons why a kernel does not accept one |
//! | [`heads`] | heads, scores and windows of all kernels |
//! | [`online_softmax`] | generator and reference of vector kernels |

mod candidates;
mod combine;
mod entries;
mod heads;
mod online_softmax;
mod part;
mod request;
mod tiles;
mod whole;
mod window;

pub use self::candidates::{CANDIDATES, Candidate, ROW_COUNTS};
pub use self::combine::AttentionCombine;
pub use self::entries::AttentionEntries;
pub use self::heads::{Heads, Scores, Window};
pub use self::part::AttentionPart;
pub use self::request::{
    AttentionRequest, Entries, ItemDivision, KernelOffer, LargerItems, Lookahead, Reason, Refusal,
};
pub use self::tiles::AttentionTiles;
pub use self::whole::Attention;
pub use self::window::AttentionWindow;
