//! Tests of the enforcement of JSON schemas. They use schemas from user reports, the official test
//! suite, and schemas as programs write them.

mod cases;
mod pairs;
mod random;
mod suite;
mod support;
mod validator;
