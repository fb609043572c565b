//! Tests of the interfaces with a scripted model that writes a given text.

mod calls;
mod clients;
mod deadlines;
mod keys;
mod scripted;
