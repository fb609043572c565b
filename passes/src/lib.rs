//! ixc-passes
