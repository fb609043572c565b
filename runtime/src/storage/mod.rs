//! Storage of weights and memory for kernels: files, their mappings, packing, and all other memory
//! that kernels access.
//!
//! | module | owns |
//! | --- | --- |
//! | [`lock`] | weights locked in memory |
//! | [`memory`] | mappings: model files, arena, rotary tables, inputs, scratch |
//! | [`pages`] | the share of memory in large pages |
//! | `page_file` | pages in an anonymous file, for several mappings |
//! | `program_pages` | unneeded pages of the program |
//! | [`shared_pages`] | prefixes that sequences share |
//! | `pack` | packing of weights from a model file |
//! | `weight_source` | the stored bytes of a weight: mapped, or derived from mapped bytes |
//! | `weights` | addresses of weights for kernels, and packing on first use |
//! | [`blocks`] | experts in a plan's file: header, parts, checksums |

pub mod blocks;
pub mod lock;
pub mod memory;
pub(crate) mod pack;
pub(crate) mod page_file;
pub mod pages;
pub(crate) mod program_pages;
pub mod shared_pages;
pub(crate) mod weight_source;
pub(crate) mod weights;
