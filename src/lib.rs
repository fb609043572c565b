//! ixc
