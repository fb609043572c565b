//! ixc-runtime
