//! Tests of the static cost analysis: hand-written loops with known results, the loops of generated
//! kernels, caches compared with measurements, and llvm-mca 19 if installed.

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
