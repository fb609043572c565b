//! Tests of the whole: the program as its users run it, and the library from a model file to
//! logits. All are in one test program, which is linked once.
//!
//! ```text
//! cargo test --test whole              all of them
//! cargo test --test whole golden::     those of golden.rs
//! ```

mod batch;
mod batched;
mod book;
mod budget;
mod cached;
mod checkpoints;
mod chosen;
mod commands;
mod comparison;
mod converse;
mod dashboard;
mod dataflow;
mod deferral;
mod demo;
mod documentation;
mod drawings;
mod editors;
mod embeddings;
mod encoders;
mod engine_trace;
mod eval;
mod experts;
mod explain;
mod facts;
mod faults;
mod foreign_files;
mod going_on;
mod golden;
mod grammar;
mod help;
mod hostile_plans;
mod hostile_requests;
mod identities;
mod kernel_command;
mod kernel_replay;
mod kernel_rules;
mod kernel_tune;
mod ktransformers;
mod locked;
mod made_models;
mod malformed;
mod marks;
mod models;
mod moe;
mod moved_plans;
mod nextn;
mod openings;
mod origins;
mod outputs;
mod page;
mod profiles;
mod prompting;
mod quantise;
mod real_shapes;
mod recorded;
mod recurrent;
mod reference;
mod report;
mod requantised;
mod request_log;
mod requests;
mod run;
mod saved;
mod scaled;
mod serve;
mod shared;
mod shells;
mod simulate;
mod slots;
mod speculation;
mod supervised;
mod support;
mod terminal;
#[allow(dead_code, reason = "the runtime's tests use the rest of it")]
#[path = "../../runtime/tests/tiny/mod.rs"]
mod tiny;
mod trace;
mod turns;
mod usage;
mod workbench;
