//! ixc-codegen
