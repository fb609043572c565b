//! Where bytes are: files and what is mapped of them, memory, and how weights get from one to the other.
//!
//! | module | what it owns |
//! | --- | --- |
//! | `identity` | which file a file is |
//! | [`lock`] | weights that stay in memory |
//! | [`memory`] | mappings: model files, arena, rotary tables, inputs, scratch |
//! | [`pages`] | how much of memory is in large pages |
//! | `page_file` | pages in an anonymous file, for several mappings |
//! | `program_pages` | pages of the program that are not needed any more |
//! | [`shared_pages`] | prefixes that sequences share |
//! | `pack` | weights of a model file into packed memory |
//! | `stored` | a weight's bytes: mapped, or made of what is mapped |
//! | `weights` | where kernels find weights, and packing them when they are first needed |
//! | [`blocks`] | experts as they lie in a plan's file: header, parts, checksums |

pub mod blocks;
pub(crate) mod identity;
pub mod lock;
pub mod memory;
pub(crate) mod pack;
pub(crate) mod page_file;
pub mod pages;
pub(crate) mod program_pages;
pub mod shared_pages;
pub(crate) mod stored;
pub(crate) mod weights;
