//! Interfaces of a model that writes the text of a test.

mod calls;
mod clients;
mod scripted;
