//! JSON schemas as they are followed: reports of users, the official test suite, and schemas as
//! programs write them.

mod cases;
mod pairs;
mod random;
mod suite;
mod support;
mod validator;
