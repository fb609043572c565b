//! List of CPU models, and the model of each target.

use ixc_targets::Target;

use super::model::CpuModel;
use super::{amd, intel};

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

/// Returns the model of a target's CPU. A row that names an instruction set gets the first CPU with
/// that set; `portable` has no model.
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
    use super::super::class::Width;
    use super::super::model::{Wide, WideVectors};
    use super::*;

    #[test]
    fn every_row_parses_and_stands_once_per_table() {
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
