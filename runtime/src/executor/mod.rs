//! A step: one pass over the stages of a plan by all threads.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`states`] | what lasts from step to step, and going back to an earlier position |
//! | [`sliding`] | of a state with a window, which positions memory holds |
//! | `sequences` | whose states those are, and the rows of each sequence in a step |
//! | [`stats`] | where the time went |
//! | [`page_cache_hints`] | experts in mapped files: telling the page cache what will be needed |
//! | [`expert_counts`] | how often each expert was chosen |
//! | `crew` | how many threads steps have, where others use the processors, too |
//! | `expert_prefetch` | predicting which experts the next layer needs, while tokens are made one by one |
//! | `experts` | a step's requests to the expert cache, and what waits for them |
//! | [`execute`] | one pass over all steps by all threads |

pub(crate) mod crew;
pub mod execute;
pub mod expert_counts;
pub(crate) mod expert_prefetch;
pub(crate) mod experts;
pub mod page_cache_hints;
pub mod sequences;
pub mod sliding;
pub mod states;
pub mod stats;
