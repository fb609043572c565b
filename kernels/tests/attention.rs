//! Tests the choice of attention kernels for a list of requests: the first candidate that accepts,
//! and the reasons of the others. `IXC_BLESS=1` rewrites `attention.txt`.

use std::fmt::Write;
use std::path::Path;

use ixc_ir::format::Format;
use ixc_ir::units::count_text;
use ixc_kernels::attention::{
    AttentionRequest, CANDIDATES, Entries, Heads, ItemDivision, KernelOffer, Lookahead, ROW_COUNTS, Reason, Refusal,
    Scores, Window,
};
use ixc_kernels::{Bits, Cache};
use ixc_testing::bless;

/// Returns a request of a small model, with 8 query heads for each key head.
fn plain() -> AttentionRequest {
    AttentionRequest::plain(Heads { group: 8, d: 64, dv: 64 }, Scores::with_scale(0.125), 4)
}

/// Returns the requests, each with its name.
fn requests() -> Vec<(&'static str, AttentionRequest)> {
    let plain = plain();
    let window = Some(Window { positions: 128, chunked: false, both: false });
    let chunk = Some(Window { positions: 128, chunked: true, both: false });
    let blocks = Cache { keys: Format::Q8_0, values: Format::Q4_0 };
    let sinks = Scores { sinks: true, ..plain.scores };
    let slopes = Scores { slopes: true, ..plain.scores };
    let cap = Scores { cap: Some(Bits::from_value(50.0)), ..plain.scores };
    let of_cache = Entries { every: 4, chosen: None, cache: Cache::default() };
    let entries = Some(of_cache);
    let tiles = AttentionRequest { tiles: true, ..plain };
    let of_many = Heads { group: 64, ..plain.heads };
    vec![
        ("all positions", plain),
        ("all positions, tiles", tiles),
        ("all positions, tiles, rounded results", AttentionRequest { exact: false, ..tiles }),
        ("all positions, tiles, 1 query head", AttentionRequest { heads: Heads { group: 1, ..plain.heads }, ..tiles }),
        ("blocks, tiles", AttentionRequest { cache: blocks, ..tiles }),
        ("cap, tiles", AttentionRequest { scores: cap, ..tiles }),
        ("sinks, tiles", AttentionRequest { scores: sinks, ..tiles }),
        ("slopes, tiles", AttentionRequest { scores: slopes, ..tiles }),
        ("window", AttentionRequest { window, ..plain }),
        ("window, tiles", AttentionRequest { window, ..tiles }),
        ("chunks, slopes, tiles", AttentionRequest { window: chunk, scores: slopes, ..tiles }),
        ("both ways, tiles", AttentionRequest { ahead: Lookahead::Positions(8), ..tiles }),
        ("whole text, tiles", AttentionRequest { ahead: Lookahead::Text, ..tiles }),
        ("whole text, slopes", AttentionRequest { ahead: Lookahead::Text, scores: slopes, ..plain }),
        ("both ways, window", AttentionRequest { ahead: Lookahead::Positions(8), window, ..plain }),
        ("choice, tiles", AttentionRequest { chosen: true, ..tiles }),
        ("choice, sinks", AttentionRequest { chosen: true, scores: sinks, ..plain }),
        ("choice, blocks", AttentionRequest { chosen: true, cache: blocks, ..plain }),
        ("choice, slopes", AttentionRequest { chosen: true, scores: slopes, ..plain }),
        ("choice, window", AttentionRequest { chosen: true, window, ..plain }),
        ("choice, whole text", AttentionRequest { chosen: true, ahead: Lookahead::Text, ..plain }),
        ("entries, tiles", AttentionRequest { entries, window, ..tiles }),
        (
            "entries, sinks, 64 query heads",
            AttentionRequest { entries, window, scores: sinks, heads: of_many, ..plain },
        ),
        (
            "chosen entries",
            AttentionRequest { entries: Some(Entries { chosen: Some(9), ..of_cache }), window, ..plain },
        ),
        ("entries, no window", AttentionRequest { entries, ..plain }),
        ("entries, chunks", AttentionRequest { entries, window: chunk, ..plain }),
        ("entries, blocks", AttentionRequest { entries, window, cache: blocks, ..plain }),
        ("entries, cap", AttentionRequest { entries, window, scores: cap, ..plain }),
        ("entries, slopes", AttentionRequest { entries, window, scores: slopes, ..plain }),
        ("entries, both ways", AttentionRequest { entries, window, ahead: Lookahead::Positions(8), ..plain }),
    ]
}

/// Returns the answer of each candidate to the request, one per line.
fn answers(request: &AttentionRequest) -> String {
    let (mut text, mut taken) = (String::new(), None);
    for candidate in CANDIDATES {
        let reason = match (candidate.accepts(request), taken) {
            (Ok(accepted), None) => {
                let KernelOffer { spec, row_chunk, division, why, .. } = accepted;
                let division = match division {
                    ItemDivision::Whole => String::new(),
                    ItemDivision::Positions { combine, .. } => format!(" in parts, {}", combine.name()),
                    ItemDivision::Heads { spec, .. } => format!(" in bands, {}", spec.name()),
                };
                taken = Some(why);
                let _ = writeln!(text, "    {} by {row_chunk}{division}", spec.name());
                continue;
            }
            (Ok(_), Some(why)) => Reason::Preferred(why),
            (Err(reason), _) => reason,
        };
        let _ = writeln!(text, "      not {}", Refusal { kernel: candidate.kernel, reason });
    }
    text
}

#[test]
fn the_first_candidate_that_accepts_gets_the_request() {
    let mut text = String::new();
    for (name, request) in requests() {
        let _ = writeln!(text, "{name}");
        let mut before = String::new();
        for rows in ROW_COUNTS {
            let answers = answers(&AttentionRequest { rows, ..request });
            if answers != before {
                let up_to = if rows == u32::MAX { "more rows".to_owned() } else { count_text(rows.into(), "row") };
                let _ = write!(text, "  {up_to}\n{answers}");
            }
            before = answers;
        }
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/attention.txt");
    if bless::is_asked_for() {
        std::fs::write(&path, &text).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap_or_default(), text, "IXC_BLESS=1 accepts this");
}

/// Tests that accepted kernels can be generated.
#[test]
fn accepted_attention_kernels_can_be_generated() {
    for (name, request) in requests() {
        let target = if request.tiles { ixc_targets::Target::AMX } else { ixc_targets::Target::AVX2 };
        for (rows, candidate) in ROW_COUNTS.into_iter().flat_map(|rows| CANDIDATES.iter().map(move |each| (rows, each)))
        {
            if let Ok(accepted) = candidate.accepts(&AttentionRequest { rows, ..request }) {
                ixc_kernels::generate(&accepted.spec, target).unwrap_or_else(|error| panic!("{name}: {error}"));
            }
        }
    }
}
