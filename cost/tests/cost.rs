//! Static cost analysis: hand-written loops with known answers, the loops of our own kernels,
//! caches compared with silicon measurements, and llvm-mca 19 if installed.

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
