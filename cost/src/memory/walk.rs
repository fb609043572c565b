//! All accesses of a kernel for given dims, in execution order.
//!
//! Addresses are evaluated over dims once, and loops without accesses are omitted. Buffers are
//! placed one after the other, each at the start of a page, with a free page between two buffers.
//! The value of an index that a kernel loads is not known. It is replaced with a hash of the
//! index's address, reduced below the bound of its buffer.

use ixc_ir::kernel::op::Memory as OpMemory;
use ixc_ir::kernel::{Address, Affine, Atom, BufferKind, Imm, Inst, Kernel, Stmt};
use ixc_ir::random::mix;
use ixc_targets::memory::{LINE, PAGE};
use serde::Serialize;

/// Address of the first buffer. It is far from 0, because a prefetch may access memory before a
/// buffer.
const FIRST: u64 = 1 << 44;
/// Bytes of an index.
const INDEX_BYTES: u64 = 4;

/// Kind of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Load of a tile: `tileloadd`.
    TileLoad,
    /// Store of a tile: `tilestored`.
    TileStore,
    /// A load of a vector, an element or an index.
    Load,
    /// A store of a vector or an element.
    Store,
    /// A prefetch.
    Prefetch,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 5] = [Kind::TileLoad, Kind::TileStore, Kind::Load, Kind::Store, Kind::Prefetch];

    /// Returns the name of the kind for reports, in the plural.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::TileLoad => "tile loads",
            Kind::TileStore => "tile stores",
            Kind::Load => "loads",
            Kind::Store => "stores",
            Kind::Prefetch => "prefetches",
        }
    }

    /// Whether the access writes.
    pub const fn writes(self) -> bool {
        matches!(self, Kind::TileStore | Kind::Store)
    }

    /// Whether the access moves tiles.
    pub const fn is_tile(self) -> bool {
        matches!(self, Kind::TileLoad | Kind::TileStore)
    }
}

/// An access of a kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// Kind of the access.
    pub kind: Kind,
    /// Index of the buffer.
    pub buffer: usize,
    at: Offset,
    rows: u64,
    stride: u64,
    bytes: u64,
}

/// An address for given dims: a constant plus multiples of loop variables.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Offset {
    constant: i64,
    terms: Vec<(usize, i64)>,
}

impl Offset {
    /// Returns the address for these values of variables. Addresses of a verified kernel do not
    /// overflow.
    fn address(&self, vars: &[i64]) -> u64 {
        let sum = |sum: i64, &(var, by): &(usize, i64)| sum.wrapping_add(by.wrapping_mul(vars[var]));
        self.terms.iter().fold(self.constant, sum) as u64
    }
}

#[derive(Debug)]
enum Step {
    Access(Access),
    /// Loads an index into a variable. The index is less than the bound.
    Index {
        access: Access,
        var: usize,
        below: u64,
    },
    Loop(Loop),
}

#[derive(Debug)]
struct Loop {
    statement: u32,
    var: usize,
    trip: u64,
    body: Vec<Step>,
}

/// Receiver of the events of a [`Walk`].
pub trait Visitor {
    /// Called when a line is accessed.
    fn line(&mut self, access: &Access, line: u64);
    /// Called when a loop begins that will run `trip` times, at least once. `statement` is its
    /// number in the order of the kernel's text.
    fn enter(&mut self, statement: u32, trip: u64);
    /// Called when an iteration of the innermost open loop ends.
    fn iteration(&mut self);
    /// Called when the innermost open loop ends.
    fn leave(&mut self);
}

/// All accesses of a kernel for given dims.
#[derive(Debug)]
pub struct Walk {
    steps: Vec<Step>,
    vars: usize,
    /// Address of the first byte, and length, of each buffer.
    buffers: Vec<(u64, u64)>,
}

impl Walk {
    /// Creates the walk of a verified kernel. The dims must be in their ranges.
    pub fn new(kernel: &Kernel, dims: &[i64]) -> Walk {
        let mut next = FIRST;
        let place = |buffer: &ixc_ir::kernel::Buffer| {
            let bytes = over_dims(&buffer.size, dims);
            let first = next;
            next = next.wrapping_add(bytes.div_ceil(PAGE).wrapping_add(1).wrapping_mul(PAGE));
            (first, bytes)
        };
        let buffers: Vec<(u64, u64)> = kernel.buffers.iter().map(place).collect();
        let mut number = 0;
        let steps = Reader { kernel, dims, buffers: &buffers }.block(&kernel.body, &mut number);
        Walk { steps, vars: kernel.vars.len(), buffers }
    }

    /// Returns the minimum number of lines that a walk accesses. Each row of a tile and each vector
    /// counts as one line.
    pub fn touches(&self) -> u64 {
        fn count(steps: &[Step]) -> u64 {
            let each = steps.iter().map(|step| match step {
                Step::Access(access) => access.rows,
                Step::Index { .. } => 1,
                Step::Loop(inner) => inner.trip.saturating_mul(count(&inner.body)),
            });
            each.fold(0, u64::saturating_add)
        }
        count(&self.steps)
    }

    /// Returns the numbers of a buffer's lines.
    pub fn lines(&self, buffer: usize) -> std::ops::Range<u64> {
        let (first, bytes) = self.buffers[buffer];
        first / LINE..first.wrapping_add(bytes).div_ceil(LINE)
    }

    /// Reports all accesses to the visitor.
    pub fn visit(&self, visitor: &mut impl Visitor) {
        visit(&self.steps, &mut vec![0; self.vars], visitor);
    }
}

fn visit(steps: &[Step], vars: &mut [i64], visitor: &mut impl Visitor) {
    for step in steps {
        match step {
            Step::Access(access) => access.visit(access.at.address(vars), visitor),
            Step::Index { access, var, below } => {
                let at = access.at.address(vars);
                access.visit(at, visitor);
                vars[*var] = (mix(at) % below) as i64;
            }
            Step::Loop(inner) => {
                visitor.enter(inner.statement, inner.trip);
                for i in 0..inner.trip {
                    vars[inner.var] = i as i64;
                    visit(&inner.body, vars, visitor);
                    visitor.iteration();
                }
                visitor.leave();
            }
        }
    }
}

impl Access {
    fn visit(&self, at: u64, visitor: &mut impl Visitor) {
        for row in 0..self.rows {
            let first = at.wrapping_add(row * self.stride);
            for line in first / LINE..=(first + self.bytes - 1) / LINE {
                visitor.line(self, line);
            }
        }
    }
}

struct Reader<'a> {
    kernel: &'a Kernel,
    dims: &'a [i64],
    buffers: &'a [(u64, u64)],
}

impl Reader<'_> {
    fn block(&self, statements: &[Stmt], number: &mut u32) -> Vec<Step> {
        let mut steps = Vec::new();
        for statement in statements {
            let this = *number;
            *number += 1;
            match statement {
                Stmt::Inst(inst) => steps.extend(self.access(inst).map(Step::Access)),
                Stmt::LoadIndex { var, address } => {
                    let buffer = address.buffer.index();
                    let BufferKind::Index { below } = &self.kernel.buffers[buffer].kind else { continue };
                    let access = self.at(Kind::Load, address, 1, 0, INDEX_BYTES);
                    let below = over_dims(below, self.dims).max(1);
                    steps.push(Step::Index { access, var: var.index(), below });
                }
                Stmt::For(f) => {
                    let body = self.block(&f.body, number);
                    let trip = over_dims(&f.trip, self.dims);
                    if !body.is_empty() && trip > 0 {
                        steps.push(Step::Loop(Loop { statement: this, var: f.var.index(), trip, body }));
                    }
                }
            }
        }
        steps
    }

    fn access(&self, inst: &Inst) -> Option<Access> {
        let address = inst.address.as_ref()?;
        let stride = if let Imm::Int(stride) = inst.imm { stride.max(0) as u64 } else { 0 };
        let (rows, row) = (u64::from(inst.ty.rows), u64::from(inst.ty.row_bytes()));
        Some(match inst.op.row().memory {
            OpMemory::Load => self.at(Kind::Load, address, 1, 0, row),
            OpMemory::LoadElement => self.at(Kind::Load, address, 1, 0, inst.ty.elem.bytes().into()),
            OpMemory::Store => self.at(Kind::Store, address, 1, 0, row),
            OpMemory::LoadRows => self.at(Kind::TileLoad, address, rows, stride, row),
            OpMemory::StoreRows => self.at(Kind::TileStore, address, rows, stride, row),
            OpMemory::Hint => self.at(Kind::Prefetch, address, 1, 0, 1),
            OpMemory::None | OpMemory::Index => return None,
        })
    }

    fn at(&self, kind: Kind, address: &Address, rows: u64, stride: u64, bytes: u64) -> Access {
        let buffer = address.buffer.index();
        let mut at = Offset { constant: self.buffers[buffer].0 as i64, terms: Vec::new() };
        at.constant = at.constant.wrapping_add(address.offset.constant);
        for &(atom, by) in &address.offset.terms {
            match atom {
                Atom::Dim(dim) => at.constant = at.constant.wrapping_add(by.wrapping_mul(self.dims[dim.index()])),
                Atom::Var(var) => at.terms.push((var.index(), by)),
            }
        }
        Access { kind, buffer, at, rows, stride, bytes }
    }
}

/// Evaluates a size or a trip count over dims; negative values become 0.
fn over_dims(affine: &Affine, dims: &[i64]) -> u64 {
    let value = affine.evaluate(|atom| match atom {
        Atom::Dim(dim) => dims.get(dim.index()).copied().unwrap_or(0),
        Atom::Var(_) => 0,
    });
    value.and_then(|value| u64::try_from(value).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use ixc_ir::kernel::{KernelBuilder, Type};

    use super::*;

    #[derive(Default)]
    struct Record(String);

    impl Visitor for Record {
        fn line(&mut self, access: &Access, line: u64) {
            self.0 += &format!(" {}+{}", access.buffer, line - FIRST / LINE);
        }
        fn enter(&mut self, statement: u32, trip: u64) {
            self.0 += &format!(" {statement}x{trip}(");
        }
        fn iteration(&mut self) {
            self.0 += ";";
        }
        fn leave(&mut self) {
            self.0 += ")";
        }
    }

    fn visited_steps(kernel: &Kernel, dims: &[i64]) -> String {
        let mut record = Record::default();
        let walk = Walk::new(kernel, dims);
        walk.visit(&mut record);
        assert!(walk.touches() <= record.0.matches('+').count() as u64);
        record.0
    }

    #[test]
    fn memory_walk_reports_accesses_in_order_by_line() {
        let mut b = KernelBuilder::new("k");
        let n = b.dim("n", 0, 9);
        let (x, y) = (b.read("x", n * 4096), b.write("y", 4096));
        b.for_each("idle", 1000, |b, _| {
            b.splat_f32(8, 0.0);
        });
        b.for_each("i", n, |b, i| {
            let v = b.load(Type::f32(16), x, i * 96);
            b.store(y, 64, v);
        });
        let kernel = b.finish();
        // The second vector begins in the middle of a line. `x` has two pages and is followed by a
        // free page, together 192 lines.
        assert_eq!(visited_steps(&kernel, &[2]), " 2x2( 0+0 1+193; 0+1 0+2 1+193;)");
        assert_eq!(visited_steps(&kernel, &[0]), "");
    }

    #[test]
    fn walk_covers_tile_rows_and_bounded_indices() {
        let mut b = KernelBuilder::new("k");
        let ids = b.buffer("ids", BufferKind::Index { below: 4.into() }, 8);
        let x = b.read("x", 65536);
        b.for_each("i", 2, |b, i| {
            let row = b.load_index("row", ids, i * 4);
            b.tile_load(Type::tile(ixc_ir::kernel::Elem::Bf16, 2, 32), x, row * 4096, 128);
        });
        let text = visited_steps(&b.finish(), &[]);
        let rows: Vec<u64> = text
            .split(" 1+")
            .skip(1)
            .map(|t| t.trim_end_matches([';', ')']).split(' ').next().unwrap())
            .map(|line| line.trim_end_matches(';').parse().unwrap())
            .collect();
        // The ids and the free page after them take two pages, so `x` begins at line 128.
        assert_eq!(rows.len(), 4);
        assert!(rows.chunks(2).all(|pair| (pair[0] - 128) % 64 == 0 && pair[0] < 128 + 256 && pair[1] == pair[0] + 2));
    }
}
