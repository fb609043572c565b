//! Attention over the KV cache.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`whole`] | rows over all positions |
//! | [`part`], [`combine`] | one row over a part of the positions; the result of the parts |
//! | [`window`] | rows over their last positions |
//! | [`entries`] | a row over its last positions and entries |
//! | [`tiles`] | many rows, by tile products |
//! | [`heads`] | heads, scores and windows, which all of these have |
//! | [`online_softmax`] | the generator and the reference of kernels by vectors |

mod combine;
mod entries;
mod heads;
mod online_softmax;
mod part;
mod tiles;
mod whole;
mod window;

pub use self::combine::AttentionCombine;
pub use self::entries::AttentionEntries;
pub use self::heads::{Heads, Scores};
pub use self::part::AttentionPart;
pub use self::tiles::AttentionTiles;
pub use self::whole::Attention;
pub use self::window::AttentionWindow;
