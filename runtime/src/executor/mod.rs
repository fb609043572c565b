//! The executor: runs one step as a pass of all threads over the stages of a plan.
//!
//! | module | what it owns |
//! | --- | --- |
//! | [`states`] | memory of states; going back to an earlier position |
//! | [`sliding`] | the positions that memory holds of a state with a window |
//! | `sequences` | sequences with their states, and the rows of each in a step |
//! | [`stats`] | statistics of time |
//! | [`page_cache_hints`] | experts in mapped files: hints for the page cache |
//! | [`expert_counts`] | counts of chosen experts |
//! | `thread_count` | number of threads, when other processes use the processors |
//! | `expert_prefetch` | predicting the next layer's experts while decoding |
//! | `experts` | a step's requests to the expert cache, and the waits for them |
//! | [`execute`] | one pass over all steps by all threads |

pub mod execute;
pub mod expert_counts;
pub(crate) mod expert_prefetch;
pub(crate) mod experts;
pub mod page_cache_hints;
pub mod sequences;
pub mod sliding;
pub mod states;
pub mod stats;
pub(crate) mod thread_count;
pub mod traffic;
