//! The static cost analysis: loops written by hand with known answers, the loops of our own kernels, caches against what silicon measured, and
//! llvm-mca 19 where it is installed.

#[path = "cost/doc.rs"]
mod doc;
#[path = "cost/hand.rs"]
mod hand;
#[path = "cost/kernels.rs"]
mod kernels;
#[path = "cost/levels.rs"]
mod levels;
#[path = "cost/llvm_mca.rs"]
mod llvm_mca;
#[path = "cost/silicon.rs"]
mod silicon;
