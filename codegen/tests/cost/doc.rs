//! The tables in `docs/cost-model.md` are those of the code.

use ixc_codegen::cost::class::Class;
use ixc_codegen::cost::model::{AVX512, CpuModel, Row, Source, Wide, WideVectors};
use ixc_codegen::cost::{self, MODELS};
use ixc_targets::Target;

const HEADING: &str = "## Tables\n";
const CPUS: [&str; 7] = ["haswell", "skylake-x", "icelake", "sapphire-rapids", "zen3", "zen4", "zen5"];

fn by_name(name: &str) -> &'static CpuModel {
    cost::model(Target::from_name(name).expect("a target")).expect("a model")
}

fn uops(text: &str) -> String {
    // Sixteen rows of a tile store would make the table wide.
    let parts: Vec<_> = text.split('+').collect();
    match parts.as_slice() {
        [""] => "-".into(),
        [first, rest @ ..] if rest.len() > 3 && rest.iter().all(|p| p == first) => {
            format!("{}× `{first}`", parts.len())
        }
        _ => format!("`{text}`"),
    }
}

fn cell(model: &CpuModel, row: Option<&Row>) -> String {
    let Some(row) = row else { return String::new() };
    let narrow = format!("{} {}", uops(row.narrow), row.latency);
    let wide = match row.wide {
        Wide::Uops(text) if text != row.narrow || row.wide_latency != row.latency => {
            format!(" \\| {} {}", uops(text), row.wide_latency)
        }
        Wide::AsNarrow if row.wide_latency != row.latency => format!(" \\| {}", row.wide_latency),
        _ if row.wide_source != row.source && row.wide != Wide::None => " \\|".into(),
        _ => String::new(),
    };
    let mark = |source: Source| match source {
        Source::Ran if model.name != "zen4" => "zen4",
        source => source.mark(),
    };
    let wide = match row.wide_source {
        source if source != row.source && !wide.is_empty() => format!(" {}{wide} {}", mark(row.source), mark(source)),
        _ => format!("{wide} {}", mark(row.source)),
    };
    let wide = if model.wide == WideVectors::None { format!(" {}", mark(row.source)) } else { wide };
    format!("{narrow}{wide}")
}

fn table() -> String {
    let mut out = format!("| class | {} |\n| --- |{}\n", CPUS.join(" | "), " --- |".repeat(CPUS.len()));
    let models = CPUS.map(by_name);
    let slots: Vec<_> = models.iter().map(|m| m.front_end.to_string()).collect();
    out += &format!("| slots per cycle | {} |\n", slots.join(" | "));
    for &class in Class::ALL {
        let cells = models.map(|model| cell(model, model.row(class)));
        out += &format!("| {class:?}: {} | {} |\n", class.about(), cells.join(" | "));
    }
    out
}

#[test]
fn the_tables_in_the_docs_are_those_of_the_code() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/cost-model.md");
    let doc = std::fs::read_to_string(path).expect("docs/cost-model.md");
    let (before, section) = doc.split_once(HEADING).expect("a heading for the tables");
    let text = section.split("\n|").next().unwrap_or_default().trim_end();
    let now = format!("{before}{HEADING}{text}\n\n{}", table());
    if std::env::var_os("IXC_BLESS").is_some() {
        std::fs::write(path, &now).expect("to be written");
    }
    let found = std::fs::read_to_string(path).expect("docs/cost-model.md");
    assert!(
        found == now,
        "docs/cost-model.md is not what the tables say: IXC_BLESS=1 cargo test -p ixc-codegen --test cost"
    );
}

#[test]
fn a_class_that_a_model_lacks_is_one_that_its_cpu_lacks() {
    use Class::*;
    let new = [PermuteBytes, PermuteTwoBytes, Multishift, DotInt];
    let bf16 = [DotBf16, FloatToBf16, FloatToBf16Two];
    let tiles = [TileDot, TileLoad, TileStore, TileZero, TileConfig, TileRelease];
    for model in MODELS {
        let lacking = Class::ALL.iter().filter(|c| model.row(**c).is_none());
        let mut right: Vec<Class> = match model.name {
            "haswell" | "zen3" => AVX512.iter().copied().chain([DotInt]).collect(),
            "alder-lake" => AVX512.to_vec(),
            "skylake-x" => new.into_iter().chain(bf16).collect(),
            "icelake" => bf16.to_vec(),
            _ => Vec::new(),
        };
        if !matches!(model.name, "sapphire-rapids" | "granite-rapids") {
            right.extend(tiles);
        }
        right.sort();
        assert_eq!(lacking.copied().collect::<Vec<_>>(), right, "{}", model.name);
    }
}
