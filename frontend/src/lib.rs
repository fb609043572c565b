//! ixc-frontend
