//! CPU models: ports, front end, and one row per instruction class.
//!
//! A row has the µops of an instruction and the latency of its result. µops are in the notation of
//! uops.info without its `p`:
//!
//! ```text
//! "01"        one µop on port 0 or 1
//! "5+5"       two µops on port 5, two slots of the front end
//! "78&49"     two µops that take one slot together (a store's address and data)
//! "1:3"       one µop that keeps port 1 busy for three cycles
//! ""          no port, one slot (a move that renaming does)
//! ```
//!
//! Rows are in `intel` and `amd`. A model is a list of tables; the first table with a row for a
//! class is used. The table of a CPU therefore contains only the differences from its predecessor.
//!
//! Invariant: every number has its source next to it. Instructions of a class without a row are
//! reported as unknown; they never count as free.

use ixc_targets::Target;

use crate::class::{Class, Width};

mod amd;
mod intel;

/// Source of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CostSource {
    /// LLVM 19's scheduling model of the CPU (`llvm-mca --instruction-tables`).
    Llvm,
    /// Measured for this project on a CPU of this kind: the throughput and latency of each class.
    /// Pairs of classes were measured to find shared ports.
    Measured,
    /// The file `FACTS.md` of this project, which follows Intel's optimisation manual.
    Manual,
    /// General knowledge (uops.info, the vendors' optimisation guides), not checked again.
    Unverified,
}

impl CostSource {
    /// Returns the mark that stands for the source in the documentation.
    pub const fn mark(self) -> &'static str {
        match self {
            CostSource::Llvm => "llvm",
            CostSource::Measured => "ran",
            CostSource::Manual => "facts",
            CostSource::Unverified => "mem",
        }
    }
}

/// One port or unit.
#[derive(Clone, Copy, Debug)]
pub struct Port {
    /// Character that stands for the port in the cost rows.
    pub key: char,
    /// Name of the port in reports.
    pub name: &'static str,
}

/// Cost of one class on one CPU.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Class of instructions.
    pub class: Class,
    /// µops of the instruction on up to 32 bytes.
    pub narrow: &'static str,
    /// Latency of the narrow form in cycles.
    pub latency: u32,
    /// µops of the instruction on 64 bytes.
    pub wide: Wide,
    /// Latency of the 64-byte form in cycles.
    pub wide_latency: u32,
    /// Source of this row's numbers.
    pub source: CostSource,
    /// Source of this row's numbers for 64 bytes.
    pub wide_source: CostSource,
}

impl Row {
    /// Returns the row with another source for its 64-byte form.
    pub const fn wide_from(self, source: CostSource) -> Row {
        Row { wide_source: source, ..self }
    }
}

/// Cost of the 64-byte form of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wide {
    /// The form does not exist, or the model does not know it.
    None,
    /// µops in the notation of this module, such as `01` for port 0 or 1.
    Uops(&'static str),
    /// The µops of the narrow form, executed with the CPU's method for 64 bytes:
    /// [`CpuModel::wide`].
    AsNarrow,
}

/// Returns a row for a class without a 64-byte form.
pub const fn narrow(class: Class, uops: &'static str, latency: u32, source: CostSource) -> Row {
    Row { class, narrow: uops, latency, wide: Wide::None, wide_latency: 0, source, wide_source: source }
}

/// Returns a row whose 64-byte form has other µops.
pub const fn both(class: Class, uops: &'static str, wide: &'static str, latency: u32, source: CostSource) -> Row {
    Row { class, narrow: uops, latency, wide: Wide::Uops(wide), wide_latency: latency, source, wide_source: source }
}

/// Returns a row whose 64-byte form has the same µops. A CPU that executes vectors in halves takes
/// each µop's port twice.
pub const fn same(class: Class, uops: &'static str, latency: u32, wide_latency: u32, source: CostSource) -> Row {
    Row { class, narrow: uops, latency, wide: Wide::AsNarrow, wide_latency, source, wide_source: source }
}

/// Method of a CPU for executing vectors of 64 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WideVectors {
    /// The CPU has no vectors of 64 bytes.
    None,
    /// Vectors are executed in one piece: each µop takes a port once.
    Whole,
    /// Vectors are executed in two halves: each µop takes a port twice.
    Halves,
}

/// A CPU in the cost analysis.
#[derive(Debug)]
pub struct CpuModel {
    /// Name of the CPU's row in the target table.
    pub name: &'static str,
    /// One-line description.
    pub about: &'static str,
    /// Slots of the front end per cycle.
    pub front_end: u32,
    /// Ports and units.
    pub ports: &'static [Port],
    /// Ports that take no vector µops in a loop with 64-byte arithmetic. Intel then joins two ports
    /// to one.
    pub closed_by_wide: &'static str,
    /// Method for vectors of 64 bytes.
    pub wide: WideVectors,
    /// Classes that the CPU cannot execute, although a table that it shares has a row for them.
    pub lacks: &'static [Class],
    /// Tables of rows; the first table with a row for a class is used.
    pub tables: &'static [&'static [Row]],
}

/// A µop: the ports that can execute it, as bits in the order of [`CpuModel::ports`], and the
/// cycles for which it occupies a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uop {
    /// Ports that can execute the µop, one bit each.
    pub ports: u32,
    /// Cycles for which the µop occupies its port.
    pub cycles: u32,
}

/// Cost of an instruction, without the cost of its memory operand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cost {
    /// µops of the instruction.
    pub uops: Vec<Uop>,
    /// Slots of the front end.
    pub slots: u32,
    /// Latency in cycles.
    pub latency: u32,
}

impl CpuModel {
    /// Returns the row of a class.
    pub fn row(&self, class: Class) -> Option<&'static Row> {
        if self.lacks.contains(&class) {
            return None;
        }
        self.tables.iter().find_map(|table| table.iter().find(|row| row.class == class))
    }

    /// Returns the cost of a class; `None` if the model has no row for it.
    pub fn cost(&self, class: Class, width: Width) -> Option<Cost> {
        let row = self.row(class)?;
        let (text, latency, times) = match (width, row.wide, self.wide) {
            (Width::Z, Wide::None, _) | (Width::Z, _, WideVectors::None) => return None,
            (Width::Z, Wide::Uops(text), _) => (text, row.wide_latency, 1),
            (Width::Z, Wide::AsNarrow, WideVectors::Whole) => (row.narrow, row.wide_latency, 1),
            (Width::Z, Wide::AsNarrow, WideVectors::Halves) => (row.narrow, row.wide_latency, 2),
            _ => (row.narrow, row.latency, 1),
        };
        let mut cost = Cost { uops: Vec::new(), slots: 0, latency };
        for slot in text.split('+') {
            cost.slots += 1;
            for uop in slot.split('&').filter(|uop| !uop.is_empty()) {
                let (ports, cycles) = uop.split_once(':').unwrap_or((uop, "1"));
                cost.uops.push(Uop { ports: self.port_set(ports)?, cycles: cycles.parse::<u32>().ok()? * times });
            }
        }
        Some(cost)
    }

    /// Returns the set of the ports with these characters; `None` if a port does not exist.
    pub fn port_set(&self, keys: &str) -> Option<u32> {
        keys.chars().try_fold(0, |set, key| Some(set | 1 << self.ports.iter().position(|port| port.key == key)?))
    }

    /// Returns the names of a set of ports, joined: `p0|p5`.
    pub fn port_names(&self, set: u32) -> String {
        let names: Vec<_> =
            self.ports.iter().enumerate().filter(|(i, _)| set >> i & 1 == 1).map(|(_, port)| port.name).collect();
        names.join("|")
    }
}

/// Classes that need AVX-512.
pub const AVX512: &[Class] = &[
    Class::BlendMask,
    Class::PermuteWords,
    Class::PermuteBytes,
    Class::PermuteTwo,
    Class::PermuteTwoWords,
    Class::PermuteTwoBytes,
    Class::Multishift,
    Class::Narrow,
    Class::NarrowStore,
    Class::FloatScale,
    Class::DotBf16,
    Class::FloatToBf16,
    Class::FloatToBf16Two,
    Class::CompareMask,
    Class::MaskLogic,
    Class::MaskShift,
    Class::MaskFromInt,
    Class::MaskToInt,
    Class::MaskToVector,
    Class::IntBroadcast,
];

/// All models.
pub static MODELS: &[&CpuModel] = &[
    &intel::HASWELL,
    &amd::ZEN3,
    &intel::ALDER_LAKE,
    &intel::SKYLAKE_X,
    &intel::ICELAKE,
    &amd::ZEN4,
    &amd::ZEN5,
    &intel::SAPPHIRE_RAPIDS,
    &intel::GRANITE_RAPIDS,
];

/// Returns the model of a target's CPU. For a target that names an instruction set, this is the
/// first CPU with that set. `portable` has no model.
pub fn model(target: Target) -> Option<&'static CpuModel> {
    let name = match target.name() {
        "avx2" => "haswell",
        "avx512" => "skylake-x",
        "amx" => "sapphire-rapids",
        name => name,
    };
    MODELS.iter().copied().find(|model| model.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_model_row_parses_and_is_unique() {
        for model in MODELS {
            for table in model.tables {
                for (i, row) in table.iter().enumerate() {
                    assert!(!table[..i].iter().any(|r| r.class == row.class), "{}: {:?} twice", model.name, row.class);
                    let Some(used) = model.row(row.class) else { continue };
                    assert!(model.cost(row.class, Width::Y).is_some(), "{}: {row:?}", model.name);
                    let counts = std::ptr::eq(used, row);
                    if counts && row.wide != Wide::None && model.wide != WideVectors::None {
                        assert!(model.cost(row.class, Width::Z).is_some(), "{}: {row:?}", model.name);
                    }
                }
            }
            assert!(model.port_set(model.closed_by_wide).is_some());
        }
    }

    #[test]
    fn every_x86_target_has_a_model() {
        for target in Target::all() {
            assert_eq!(model(target).is_some(), target != Target::PORTABLE, "{target:?}");
        }
    }
}
