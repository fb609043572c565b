//! Reduces a failing kernel: removes everything that the failure does not need.
//!
//! ```text
//! kernel of 120 statements, 5 buffers       differs from the interpreter
//! ...                                       remove runs of statements (halves, quarters, single
//!                                           ones), loops, carried values, buffers, dims
//! kernel of 4 statements, 2 buffers         still differs
//! ```
//!
//! Delta debugging (Zeller and Hildebrandt, 2002) over the IR. The result of a removed statement is
//! replaced by an operand of the same type, by another value, or by zeros. Its users thus stay
//! valid. Only kernels that verify are tried.
//!
//! Input: a failing kernel, and a function that returns whether another kernel fails in the same
//! way. Output: a failing kernel in which no single reduction step keeps the failure.

mod edits;

use std::panic::{AssertUnwindSafe, catch_unwind};

use ixc_ir::kernel::number::canonical;
use ixc_ir::kernel::verify::verify;
use ixc_ir::kernel::{Affine, Atom, For, Inst, Kernel, Op, Stmt};
use serde::Serialize;

use edits::{
    Replacement, edit_loop, loop_to_body, remove_statements, visit, without_buffer, without_carry, without_dim,
};

use super::choose::TargetKernel;
use super::run::{Case, Engine, Sizes};
use ixc_compile::replacements::signature_difference;

/// Kind of failure of a kernel. Failures of one kind may differ in their numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", content = "says", rename_all = "snake_case")]
pub enum Failure {
    /// The engine's results differ from the interpreter's.
    Differs,
    /// The kernel cannot be compiled or run: the error text without numbers.
    Refused(String),
    /// Something panics: the message without numbers.
    Panics(String),
    /// The user's command reports a failure.
    Command,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Differs => f.write_str("it differs from the interpreter"),
            Failure::Refused(says) => write!(f, "it is refused: {says}"),
            Failure::Panics(says) => write!(f, "it makes the compiler panic: {says}"),
            Failure::Command => f.write_str("the command reports a failure"),
        }
    }
}

/// Sizes of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Statements, including loops.
    pub statements: usize,
    /// Number of loops.
    pub loops: usize,
    /// Number of buffers.
    pub buffers: usize,
    /// Number of dims.
    pub dims: usize,
}

impl Counts {
    /// Counts the parts of a kernel.
    pub fn from_kernel(kernel: &Kernel) -> Counts {
        fn count(body: &[Stmt]) -> (usize, usize) {
            body.iter().fold((0, 0), |(all, loops), statement| match statement {
                Stmt::Inst(_) | Stmt::LoadIndex { .. } => (all + 1, loops),
                Stmt::For(inner) => {
                    let (more, nested) = count(&inner.body);
                    (all + 1 + more, loops + 1 + nested)
                }
            })
        }
        let (statements, loops) = count(&kernel.body);
        Counts { statements, loops, buffers: kernel.buffers.len(), dims: kernel.dims.len() }
    }
}

/// Kernel with the values of its dims.
#[derive(Clone, Debug, PartialEq)]
pub struct FailingKernel {
    /// Kernel that fails.
    pub kernel: Kernel,
    /// Values of the kernel's dims.
    pub dims: Vec<i64>,
}

/// Result of a reduction.
#[derive(Clone, Debug)]
pub struct Reduction {
    /// The smallest failing kernel.
    pub smallest: FailingKernel,
    /// Number of kernels that were tried.
    pub tried: usize,
    /// Whether all possible steps were tried.
    pub complete: bool,
}

/// Returns the failure of a kernel, if it fails, for inputs from a seed. The kernel is compiled,
/// run by an engine and compared with the interpreter. Inputs follow the spec of `chosen` as long
/// as the kernel still has the spec's signature.
pub fn failure(chosen: &TargetKernel, failing: &FailingKernel, seed: u64, engine: Engine) -> Option<Failure> {
    let own = signature_difference(&chosen.kernel, &failing.kernel).is_none();
    let tried =
        TargetKernel { kernel: failing.kernel.clone(), spec: chosen.spec.clone().filter(|_| own), ..chosen.clone() };
    let run = AssertUnwindSafe(|| {
        let case = Case::new(tried, Some(Sizes::Dims(failing.dims.clone())), seed)?;
        case.check(engine)
    });
    match catch_unwind(run) {
        Ok(Ok(outcome)) => outcome.difference.map(|_| Failure::Differs),
        Ok(Err(error)) => Some(Failure::Refused(without_numbers(&error.to_string()))),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            Some(Failure::Panics(without_numbers(text.unwrap_or("something"))))
        }
    }
}

/// Removes numbers and names after `%`: they identify a part of the kernel, not the failure.
fn without_numbers(text: &str) -> String {
    let mut out = String::new();
    let mut in_name = false;
    for c in text.lines().next().unwrap_or_default().chars() {
        in_name = c == '%' || in_name && (c.is_alphanumeric() || c == '_' || c == '.');
        match (in_name && c != '%', c.is_ascii_digit()) {
            (true, _) => {}
            (false, true) if out.ends_with('#') => {}
            (false, true) => out.push('#'),
            (false, false) => out.push(c),
        }
    }
    out
}

/// Reduces a failing kernel. `fails` returns whether another kernel fails in the same way, and is
/// called at most `max_tried` times. With `keeps_dims`, dims keep their values, for a `fails` that
/// ignores them.
pub fn reduce(
    failing: &FailingKernel,
    keeps_dims: bool,
    max_tried: usize,
    fails: &mut dyn FnMut(&FailingKernel) -> bool,
) -> Reduction {
    let mut search = Search { smallest: failing.clone(), keeps_dims, tried: 0, max_tried, fails };
    loop {
        let before = search.smallest.clone();
        search.statements();
        search.loops();
        search.carries();
        search.addresses();
        search.signature();
        if search.smallest == before || search.is_over() {
            break;
        }
    }
    let complete = !search.is_over();
    Reduction { tried: search.tried, complete, smallest: search.smallest }
}

struct Search<'f> {
    smallest: FailingKernel,
    keeps_dims: bool,
    tried: usize,
    max_tried: usize,
    fails: &'f mut dyn FnMut(&FailingKernel) -> bool,
}

impl Search<'_> {
    fn is_over(&self) -> bool {
        self.tried >= self.max_tried
    }

    /// Replaces the smallest kernel by `kernel`, if that is a different kernel that verifies and
    /// still fails. Returns whether it was replaced.
    fn accept(&mut self, kernel: Kernel, dims: Vec<i64>) -> bool {
        if self.is_over() || verify(&kernel).is_err() {
            return false;
        }
        let next = FailingKernel { kernel: canonical(&kernel), dims };
        if next == self.smallest {
            return false;
        }
        self.tried += 1;
        let taken = (self.fails)(&next);
        if taken {
            self.smallest = next;
        }
        taken
    }

    fn take_kernel(&mut self, kernel: Kernel) -> bool {
        self.accept(kernel, self.smallest.dims.clone())
    }

    /// Removes ranges of statements, from half of all statements to single ones.
    fn statements(&mut self) {
        let mut run = Counts::from_kernel(&self.smallest.kernel).statements.div_ceil(2).max(1);
        loop {
            let mut from = 0;
            while from < Counts::from_kernel(&self.smallest.kernel).statements && !self.is_over() {
                let chosen = from..from + run;
                let taken = [Replacement::Like, Replacement::Last, Replacement::Zero].into_iter().any(|stand| {
                    let kernel = remove_statements(&self.smallest.kernel, &|at| chosen.contains(&at), stand);
                    weight(&kernel) < weight(&self.smallest.kernel) && self.take_kernel(kernel)
                });
                if !taken {
                    from += run;
                }
            }
            if run == 1 || self.is_over() {
                break;
            }
            run /= 2;
        }
    }

    /// Makes loops run once or half as often, or replaces them by their body.
    fn loops(&mut self) {
        let mut at = 0;
        while at < Counts::from_kernel(&self.smallest.kernel).loops && !self.is_over() {
            let edits: [fn(&mut For); 2] = [
                |inner| inner.trip = Affine::constant(1),
                |inner| {
                    if let Some(trip) = inner.trip.as_constant() {
                        inner.trip = Affine::constant(trip / 2);
                    }
                },
            ];
            for edit in edits {
                let kernel = edit_loop(&self.smallest.kernel, at, edit);
                if trips(&kernel) < trips(&self.smallest.kernel) {
                    self.take_kernel(kernel);
                }
            }
            let kernel = loop_to_body(&self.smallest.kernel, at);
            if !kernel.is_some_and(|kernel| self.take_kernel(kernel)) {
                at += 1;
            }
        }
    }

    /// Removes values that loops carry.
    fn carries(&mut self) {
        for at in 0..Counts::from_kernel(&self.smallest.kernel).loops {
            let mut carry = 0;
            while !self.is_over() {
                let Some(kernel) = without_carry(&self.smallest.kernel, at, carry) else { break };
                if !self.take_kernel(kernel) {
                    carry += 1;
                }
            }
        }
    }

    /// Replaces offsets by zero.
    fn addresses(&mut self) {
        for at in 0..Counts::from_kernel(&self.smallest.kernel).statements {
            let mut kernel = self.smallest.kernel.clone();
            let mut number = 0;
            visit(&mut kernel.body, &mut |statement| {
                if number == at {
                    match statement {
                        Stmt::Inst(Inst { address: Some(address), .. }) | Stmt::LoadIndex { address, .. } => {
                            address.offset = Affine::constant(0);
                        }
                        Stmt::Inst(_) | Stmt::For(_) => {}
                    }
                }
                number += 1;
            });
            self.take_kernel(kernel);
        }
    }

    /// Tries smaller sizes of a buffer, and sizes that depend on no dims.
    fn sizes(&mut self, at: usize) {
        loop {
            let (own, dims) = (&self.smallest.kernel.buffers[at].size, &self.smallest.dims);
            let value = own.evaluate(|atom| match atom {
                Atom::Dim(dim) => dims.get(dim.index()).copied().unwrap_or(0),
                Atom::Var(_) => 0,
            });
            let mut sizes: Vec<Affine> = Vec::new();
            if !own.terms.is_empty() {
                sizes.extend([Some(own.constant), value].into_iter().flatten().map(Affine::constant));
            }
            sizes.push(Affine { constant: own.constant / 2, ..own.clone() });
            let taken = sizes.into_iter().any(|size| {
                let mut kernel = self.smallest.kernel.clone();
                kernel.buffers[at].size = size;
                self.take_kernel(kernel)
            });
            if !taken {
                break;
            }
        }
    }

    /// Removes unused buffers and dims, and tries smaller buffers and smaller values of dims.
    fn signature(&mut self) {
        let mut at = 0;
        while at < self.smallest.kernel.buffers.len() && !self.is_over() {
            let taken = without_buffer(&self.smallest.kernel, at).is_some_and(|kernel| self.take_kernel(kernel));
            if !taken {
                self.sizes(at);
                at += 1;
            }
        }
        let mut at = 0;
        while at < self.smallest.kernel.dims.len() && !self.keeps_dims && !self.is_over() {
            let mut dims = self.smallest.dims.clone();
            if at < dims.len() {
                dims.remove(at);
            }
            let taken = without_dim(&self.smallest.kernel, at).is_some_and(|kernel| self.accept(kernel, dims));
            if !taken {
                let (lo, own) = (self.smallest.kernel.dims[at].lo, self.smallest.dims.get(at).copied().unwrap_or(0));
                for value in [lo, lo.max(1), own / 2] {
                    let mut dims = self.smallest.dims.clone();
                    if (lo..own).contains(&value) && at < dims.len() {
                        dims[at] = value;
                        self.accept(self.smallest.kernel.clone(), dims);
                    }
                }
                at += 1;
            }
        }
    }
}

/// Returns the size of a kernel. A constant counts half as much as another statement, so a constant
/// is better than a load or a computation.
fn weight(kernel: &Kernel) -> usize {
    fn statement_count(body: &[Stmt]) -> usize {
        let weights = body.iter().map(|statement| match statement {
            Stmt::Inst(Inst { op: Op::Bytes | Op::TileZero, .. }) => 1,
            Stmt::Inst(_) | Stmt::LoadIndex { .. } => 2,
            Stmt::For(inner) => 2 + statement_count(&inner.body),
        });
        weights.sum()
    }
    statement_count(&kernel.body)
}

/// Returns the sum of the constant trip counts. A trip count that depends on dims counts more than
/// any constant.
fn trips(kernel: &Kernel) -> i128 {
    fn sum(body: &[Stmt]) -> i128 {
        let trips = body.iter().filter_map(|statement| match statement {
            Stmt::For(inner) => {
                let own = inner.trip.as_constant().map_or(i128::from(i64::MAX), i128::from);
                Some(own + sum(&inner.body))
            }
            Stmt::Inst(_) | Stmt::LoadIndex { .. } => None,
        });
        trips.sum()
    }
    sum(&kernel.body)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::choose::choose;
    use crate::kernels::run::dims;
    use ixc_targets::Target;

    fn failing(text: &str) -> (TargetKernel, FailingKernel) {
        let chosen = choose(text, Target::AVX2).unwrap();
        let dims = dims(&chosen, Some(Sizes::Rows(5))).unwrap();
        let failing = FailingKernel { kernel: chosen.kernel.clone(), dims };
        (chosen, failing)
    }

    /// Simulates a faulty engine: a kernel fails if it has an f32 product before an f32 store.
    #[test]
    fn reduction_removes_statements_irrelevant_to_the_fault() {
        let (_, failing) = failing("linear format=q4_k_r16 k=256 tile=16 n=16 residual shape=gemm");
        let before = Counts::from_kernel(&failing.kernel);
        let mut fault = |failing: &FailingKernel| {
            verify(&failing.kernel).unwrap();
            let text = failing.kernel.to_string();
            text.find(" mul f32x8 ").is_some_and(|at| text[at..].contains("store f32x8"))
        };
        assert!(fault(&failing));
        let reduced = reduce(&failing, false, 5000, &mut fault);
        let after = Counts::from_kernel(&reduced.smallest.kernel);
        println!("{before:?} -> {after:?} by {}\n{}", reduced.tried, reduced.smallest.kernel);
        assert!(reduced.complete && fault(&reduced.smallest));
        assert!(before.statements > 50 && after.statements <= 4, "{after:?}\n{}", reduced.smallest.kernel);
        assert!((after.loops, after.buffers, after.dims) == (0, 1, 0), "{after:?}\n{}", reduced.smallest.kernel);
        assert_eq!(reduced.smallest.dims, [0_i64; 0]);
        // A second reduction changes nothing.
        assert_eq!(reduce(&reduced.smallest, false, 5000, &mut fault).smallest, reduced.smallest);
    }

    /// Simulates a fault in a result: the "engine" uses a wrong operation.
    #[test]
    fn differing_results_are_reduced_with_their_inputs() {
        let (chosen, failing) = failing("map function=silu n=64");
        assert_eq!(super::failure(&chosen, &failing, 0, Engine::Emulator), None);
        let differs = |failing: &FailingKernel| {
            // The fault: `sub` becomes `add`.
            let wrong = failing.kernel.to_string().replace(" sub ", " add ");
            let Ok(wrong) = ixc_ir::kernel::parse::parse(&wrong) else { return false };
            let run = |kernel: &Kernel| {
                let mut buffers = ixc_kernels::catalogue::inputs::fill(kernel, None, &failing.dims, 0).ok()?;
                ixc_ir::kernel::interpret::run(kernel, &failing.dims, &mut buffers).ok()?;
                Some(buffers)
            };
            run(&wrong) != run(&failing.kernel)
        };
        if !differs(&failing) {
            panic!("the kernel has no subtraction that matters: {}", failing.kernel);
        }
        let reduced = reduce(&failing, false, 5000, &mut |failing| differs(failing));
        let text = reduced.smallest.kernel.to_string();
        assert!(differs(&reduced.smallest) && text.contains(" sub "), "{text}");
        assert!(Counts::from_kernel(&reduced.smallest.kernel).statements <= 6, "{text}");
    }

    /// Errors of a target count as failures. Here the target has no registers for a vector.
    #[test]
    fn refusals_are_distinguished_by_their_message() {
        let (chosen, own) = failing("map function=add n=64");
        let wide = choose("map function=add n=64", Target::AVX512).unwrap();
        let failing = FailingKernel { kernel: wide.kernel, dims: own.dims };
        let Some(Failure::Refused(says)) = super::failure(&chosen, &failing, 0, Engine::Emulator) else {
            panic!("512-bit vectors are compiled for avx2")
        };
        assert!(says.contains("vectors of at most # bytes"), "{says}");
        let manner = Failure::Refused(says);
        let reduced = reduce(&failing, false, 5000, &mut |failing| {
            super::failure(&chosen, failing, 0, Engine::Emulator).as_ref() == Some(&manner)
        });
        assert!(Counts::from_kernel(&reduced.smallest.kernel).statements <= 2, "{}", reduced.smallest.kernel);
        assert_eq!(without_numbers("value %12.x is f32x16, 64 bytes\nmore"), "value % is f#x#, # bytes");
    }
}
