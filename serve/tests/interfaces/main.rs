//! The interfaces before a model that writes what a test says.

mod calls;
mod clients;
mod scripted;
