//! Test that counts how often a compilation copies a model's graph.
//!
//! The graph gets a weight that no op uses. Its name has a length that no other allocation has.
//! Each copy of the graph copies the name, and the allocator counts these copies.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use ixc_compile::compile::{CompileOptions, compile, passes_left};
use ixc_compile::model::Model;
use ixc_compile::prefix::Prefix;
use ixc_ir::graph::Weight;

/// Length of the weight's name.
const NAME_BYTES: usize = 54_321;

/// Number of allocations of [`NAME_BYTES`].
static COPIES: AtomicUsize = AtomicUsize::new(0);

/// Allocator of the system that counts copies of the name.
struct Counting;

// SAFETY: all calls go to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COPIES.fetch_add(usize::from(layout.size() == NAME_BYTES), Relaxed);
        // SAFETY: the caller has the duties of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller has the duties of `dealloc`, and `at` is from `System.alloc`.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns the number of copies of the name that `run` makes.
fn copies(run: impl FnOnce()) -> usize {
    let before = COPIES.load(Relaxed);
    run();
    COPIES.load(Relaxed) - before
}

#[test]
fn compiling_copies_the_graph_once() {
    let mut model = Model::new(ixc_compile::demo::open().unwrap()).unwrap();
    let weights = &mut model.arch.module.weights;
    let unused = Weight { name: "n".repeat(NAME_BYTES), ..weights[0].clone() };
    weights.push(unused);
    let streamed = CompileOptions { expert_memory: Some(0), ..CompileOptions::default() };
    for options in [CompileOptions::default(), streamed] {
        assert_eq!(copies(|| drop(compile(&model, &options).unwrap())), 1);
        let in_parts = || drop(Prefix::new(&model, &options).unwrap().specs(&model, &options).unwrap());
        assert_eq!(copies(in_parts), 1);
    }
    // A pass with a watcher copies its input to compare it with the output. This shows that the
    // allocator counts copies.
    let watched =
        copies(|| drop(passes_left(&model, &CompileOptions::default(), Some("fuse"), &mut |_, _, _| {}).unwrap()));
    assert!(watched > 1);
}
