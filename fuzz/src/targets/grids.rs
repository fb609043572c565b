//! Targets for dataflow descriptors and descriptions of grids.

use ixc_compile::model::Model;
use ixc_compile::place::{PlaceOptions, place};
use ixc_dataflow::check::Machine;
use ixc_dataflow::simulate::Simulator;
use ixc_dataflow::{grids, read};
use ixc_model_files::gguf::Gguf;

use crate::{Outcome, scratch, small_models};

/// Reads a descriptor, checks it, and simulates a step.
pub fn descriptor(input: &[u8]) -> Outcome {
    let descriptor = match read::open(&scratch::file("descriptor.json", input)) {
        Ok(descriptor) => descriptor,
        Err(error) => {
            let class = error.class();
            return Outcome::refused_as(error, class);
        }
    };
    let mut written = Vec::new();
    read::write(&descriptor, &mut written).expect("memory can be written");
    let again = read::open(&scratch::file("descriptor.json", &written)).expect("a written descriptor can be read");
    assert_eq!(again, descriptor);
    let machine = match Machine::new(descriptor) {
        Ok(machine) => machine,
        Err(error) => {
            let class = error.class();
            return Outcome::refused_as(format!("read, {error}"), class);
        }
    };
    match Simulator::for_timing(&machine, 1).step(&[0, 0], &[1]) {
        Ok(_) => Outcome::accepted(),
        Err(error) => {
            let class = error.class();
            Outcome::refused_as(format!("checked, {error}"), class)
        }
    }
}

/// Returns the descriptor of a small model on a small grid.
pub fn descriptors() -> Vec<Vec<u8>> {
    let gguf = Gguf::from_bytes("m.gguf".as_ref(), small_models::gguf().finish()).expect("a written file");
    let model = Model::new(gguf).expect("a supported model");
    let grid = grids::find("tiny").expect("a built-in grid");
    let placed = place(&model, &grid, &PlaceOptions { context: Some(32) }).expect("the grid has room");
    let mut written = Vec::new();
    read::write(&placed.descriptor, &mut written).expect("memory can be written");
    vec![written]
}

/// Reads and checks a description of a grid.
pub fn grid(input: &[u8]) -> Outcome {
    let Ok(text) = std::str::from_utf8(input) else { return Outcome::refused("is not UTF-8") };
    let grid = match grids::parse("grid.toml", text) {
        Ok(grid) => grid,
        Err(error) => {
            let class = error.class();
            return Outcome::refused_as(error, class);
        }
    };
    match grid.check() {
        Ok(()) => {
            let _ = (grid.pes(), grid.usable_bytes());
            Outcome::accepted()
        }
        Err(error) => Outcome::refused(format!("parsed, {error}")),
    }
}
