//! Tests that JSON schemas are enforced: schemas from user reports, the official test suite, and
//! schemas as programs write them.

mod cases;
mod pairs;
mod random;
mod suite;
mod support;
mod validator;
